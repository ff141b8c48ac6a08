#!/usr/bin/env python3
"""Golden folders of tiny models made by `transformers`: what people have on disk, and what it computes in float64.

    python exported.py              writes testdata/models/NAME/ for every model
    python exported.py NAME…        only these
    python exported.py --out DIR    elsewhere

Made with transformers 5.24.0, torch 2.15.0, safetensors 0.8.0, numpy 2.4.6. On one machine the bytes are the
same every time; another processor or another version may change the last bits of the float64 figures.

A folder holds what `save_pretrained` writes, config.json and model.safetensors in float32, and expected.safetensors:

    input_ids        i64   [b, t]
    attention_mask   i64   [b, t], 1 where there is a token                      (bert only; padding is on the right)
    token_type_ids   i64   [b, t]                                                (bert only)
    labels           i64   [b, t], the target of the same position, already shifted; -100 where none is counted
    logits           f64   [b, t, v]
    loss             f64   [], mean cross-entropy over all counted targets, in nats
    grad.N           f64   d loss / d N, for every parameter N under its name in model.safetensors

Weights are drawn from a fixed seed and rounded to float32 once; the figures are of exactly those values, computed in
float64 throughout (see precision.py). No gain is 1 and no bias 0, epsilons are large, and sizes are awkward: the
vocabularies do not divide by 4.

What to know when comparing:

- bert: logits of padded positions are in the file and mean nothing; leave them out.
- gpt2 and bert: the gradient of a key bias (the middle third of `c_attn.bias` in gpt2) is zero in exact arithmetic,
  because softmax ignores what it adds. The file holds rounding noise there.
- A tied head is one parameter, under the name of the embedding, with the sum of both gradients.
- config.json is spelled as transformers 4 did, with `rope_theta` and `rope_scaling`, except in qwen3 and llama-yarn,
  which keep `rope_parameters` as transformers 5 writes it. llama-linear says `type`, as the oldest files do, where the
  others say `rope_type`.

Each model is checked before it is kept: gradients against central finite differences; the folder, loaded again by
`from_pretrained` in plain float32 with eager attention, against the float64 logits; and each peculiarity of a model
(window, scaling, mask, …) by turning it off, which must move the logits, so that none can be missing unnoticed.
"""

import argparse
import copy
import json
import pathlib
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging

from precision import FLOAT32, wholly_float64

SEED = 20230516
UNCOUNTED = -100
OUT = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "models"

# Token ids that bert gives a meaning to.
PAD, MASK, FIRST_WORD = 0, 3, 5
BERT_LENGTHS = [12, 7, 10, 4]

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


# --------------------------------------------------------------------------------------------------------- the models


def llama_like(**changes):
    """Sizes that the models with rotary positions share: head size 6, so that three frequencies turn."""
    common = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4)
    common |= dict(num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=3e-3, attention_dropout=0.0)
    # None of the defaults, which point outside these vocabularies.
    common |= dict(bos_token_id=1, eos_token_id=2, pad_token_id=None)
    return common | changes


def rope(kind, theta, **scaling):
    return {"rope_type": kind, "rope_theta": theta, **scaling}


def models():
    """Name, configuration, and changes that must each move the logits."""
    plain = rope("default", 100.0)
    # Wave lengths are 6, 29 and 135 tokens, so that one frequency is kept, one is blended and one is scaled.
    llama3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    yarn = dict(factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.25)
    dropouts = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    gpt2 = GPT2Config(
        n_embd=16, n_layer=2, n_head=4, n_positions=16, vocab_size=43, layer_norm_epsilon=2e-3,
        bos_token_id=1, eos_token_id=1, **dropouts,
    )
    bert = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, vocab_size=47,
        max_position_embeddings=16, type_vocab_size=2, layer_norm_eps=2e-3, pad_token_id=PAD,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    untied, tied = dict(tie_word_embeddings=False), dict(tie_word_embeddings=True)
    return {
        "gpt2": (gpt2, [dict(activation_function="gelu"), dict(layer_norm_epsilon=1e-5)]),
        "llama": (
            LlamaConfig(**llama_like(vocab_size=45, rope_parameters=plain, **untied)),
            [dict(rms_norm_eps=1e-6), dict(rope_parameters=rope("default", 10000.0))],
        ),
        "llama-scaled": (
            LlamaConfig(
                **llama_like(vocab_size=46, rope_parameters=rope("llama3", 100.0, **llama3), **tied)
                | dict(max_position_embeddings=128)
            ),
            [
                dict(rope_parameters=plain),
                dict(rope_parameters=rope("linear", 100.0, factor=8.0)),
                dict(rope_parameters=rope("llama3", 100.0, **llama3 | {"low_freq_factor": 3.0})),
            ],
        ),
        "llama-yarn": (
            LlamaConfig(**llama_like(vocab_size=46, rope_parameters=rope("yarn", 100.0, **yarn), **untied)),
            [
                dict(rope_parameters=plain),
                dict(rope_parameters=rope("yarn", 100.0, attention_factor=1.0, **yarn)),
                dict(rope_parameters=rope("yarn", 100.0, **yarn | {"beta_fast": 32.0, "beta_slow": 1.0})),
            ],
        ),
        "llama-linear": (
            LlamaConfig(**llama_like(vocab_size=45, rope_parameters=rope("linear", 100.0, factor=3.0), **tied)),
            [dict(rope_parameters=plain)],
        ),
        "mistral": (
            MistralConfig(**llama_like(vocab_size=42, sliding_window=5, rope_parameters=plain, **untied)),
            [dict(sliding_window=None), dict(sliding_window=4), dict(sliding_window=6)],
        ),
        "qwen2": (
            Qwen2Config(**llama_like(vocab_size=49, use_sliding_window=False, rope_parameters=plain, **tied)),
            [dict(rms_norm_eps=1e-6)],
        ),
        "qwen3": (
            Qwen3Config(
                **llama_like(vocab_size=45, head_dim=8, use_sliding_window=False, rope_parameters=plain, **tied)
            ),
            [dict(rms_norm_eps=1e-6)],
        ),
        "bert": (bert, [dict(hidden_act="gelu_new"), dict(layer_norm_eps=1e-12)]),
    }


def build(config):
    """The model in float64, with attention that has no path of its own for speed."""
    kind = AutoModelForMaskedLM if config.model_type == "bert" else AutoModelForCausalLM
    return kind.from_config(copy.deepcopy(config), attn_implementation="eager").to(torch.float64).eval()


def draw_weights(model, generator):
    """Matrices that keep the size of what they multiply, gains around 1 and biases around 0, all rounded to float32."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() == 2:
            embeds = "embed" in name or "wte" in name or "wpe" in name
            # Conv1D of gpt2 stores [in, out].
            inputs = parameter.shape[0] if "c_" in name else parameter.shape[1]
            value = noise * (0.5 if embeds else inputs**-0.5)
        elif name.endswith("bias"):
            value = 0.2 * noise
        else:
            value = 1.0 + 0.3 * noise
        parameter.data = value.to(FLOAT32).to(torch.float64)


def draw_causal(config, generator, name):
    """Each position has the next token for its target, the last one a token that is no input. In llama-linear some
    targets do not count, two of them in one sequence, so that sequences differ in weight."""
    batch, seq = 3, 10 if name == "gpt2" else 12
    tokens = torch.randint(0, config.vocab_size, (batch, seq + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    if name == "llama-linear":
        for at in [(0, 2), (0, 11), (2, 7)]:
            labels[at] = UNCOUNTED
    return {"input_ids": tokens[:, :-1].contiguous(), "labels": labels}


def draw_masked(config, generator):
    """Sequences of several lengths in two segments; some tokens are hidden, and one target keeps its token."""
    batch, seq = len(BERT_LENGTHS), max(BERT_LENGTHS)
    words = torch.randint(FIRST_WORD, config.vocab_size, (batch, seq), generator=generator)
    inputs, labels = words.clone(), torch.full_like(words, UNCOUNTED)
    mask, types = torch.zeros_like(words), torch.zeros_like(words)
    for row, length in enumerate(BERT_LENGTHS):
        mask[row, :length] = 1
        types[row, length // 2 : length] = 1
        inputs[row, length:] = PAD
        for at in {1, length - 2}:
            labels[row, at] = words[row, at]
            inputs[row, at] = MASK
    labels[0, 5] = words[0, 5]
    return {"input_ids": inputs, "attention_mask": mask, "token_type_ids": types, "labels": labels}


# ------------------------------------------------------------------------------------------------ figures and checks


def run(model, data):
    logits = model(**{name: value for name, value in data.items() if name != "labels"}).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), data["labels"].flatten(), ignore_index=UNCOUNTED)


def largest_difference(a, b, data):
    """Over positions that hold a token."""
    held = data.get("attention_mask", torch.ones_like(data["input_ids"])) == 1
    return (a.to(torch.float64) - b.to(torch.float64))[held].abs().max().item()


def check_gradients(model, data, gradients, generator):
    """Three entries of each parameter, the largest among them, against central differences."""
    worst, step = 0.0, 1e-4
    scale = max(gradient.abs().max().item() for gradient in gradients.values())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            flat, gradient = parameter.data.view(-1), gradients[name].flatten()
            picked = torch.randint(0, flat.numel(), (2,), generator=generator).tolist()
            for at in [gradient.abs().argmax().item(), *picked]:
                held, losses = flat[at].item(), []
                # Five points, so that the error of the difference is far below that of a wrong digit.
                for offset in (-2, -1, 1, 2):
                    flat[at] = held + offset * step
                    losses.append(run(model, data)[1].item())
                flat[at] = held
                slope = (losses[0] - 8 * losses[1] + 8 * losses[2] - losses[3]) / (12 * step)
                worst = max(worst, abs(slope - gradient[at].item()))
    assert worst < 1e-9 * max(1.0, scale), f"gradients differ from finite differences by {worst}"
    return worst


def check_peculiarities(name, config, changes, weights, data, logits):
    """Whatever is turned off must be seen in the logits, at ten times the 1e-5 to which they are compared."""

    def difference(configuration, inputs):
        model = build(configuration)
        model.load_state_dict(weights)
        return largest_difference(run(model, inputs)[0], logits, data) / logits.abs().max().item()

    assert difference(config, data) == 0.0, f"{name}: the same model again computes something else"
    moved = {}
    for change in changes:
        other = copy.deepcopy(config)
        for key, value in change.items():
            setattr(other, key, value)
        moved[str(change)] = difference(other, data)
    for held, unused in (("attention_mask", 1), ("token_type_ids", 0)):
        if held in data:
            moved[held] = difference(config, data | {held: torch.full_like(data[held], unused)})
    least = min(moved, key=moved.get)
    assert moved[least] > 1e-4, f"{name}: without {least} the logits move by {moved[least]} only"
    return moved[least]


def respell(path, name):
    """Writes config.json as transformers 4 did, and leaves out which version wrote it where that would be untrue."""
    config = json.loads(path.read_text())
    if name not in ("qwen3", "llama-yarn"):
        config.pop("transformers_version")
        config["torch_dtype"] = config.pop("dtype")
        if "rope_parameters" in config:
            scaling = config.pop("rope_parameters")
            config["rope_theta"] = scaling.pop("rope_theta")
            if name == "llama-linear":
                scaling = {"type": scaling["rope_type"], "factor": scaling["factor"]}
            config["rope_scaling"] = None if scaling.get("rope_type") == "default" else scaling
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def check_folder(folder, data, logits):
    """The folder as it lies there, in plain float32."""
    kind = AutoModelForMaskedLM if AutoConfig.from_pretrained(folder).model_type == "bert" else AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        difference = largest_difference(run(model, data)[0], logits, data)
    assert difference < 1e-4, f"{folder}: float32 logits differ by {difference}"
    return difference


def make(name, config, changes, out):
    generator = torch.Generator().manual_seed(SEED)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with wholly_float64():
        model = build(config)
        draw_weights(model, generator)
        data = draw_masked(config, generator) if name == "bert" else draw_causal(config, generator, name)
        logits, loss = run(model, data)
        loss.backward()
        gradients = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
        weights = copy.deepcopy(model.state_dict())
        finite = check_gradients(model, data, gradients, generator)
        moved = check_peculiarities(name, config, changes, weights, data, logits.detach())

    model.to(torch.float32).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    respell(folder / "config.json", name)
    expected = data | {"logits": logits.detach(), "loss": loss.detach()}
    expected |= {f"grad.{key}": gradient for key, gradient in gradients.items()}
    save_file({key: value.contiguous() for key, value in expected.items()}, folder / "expected.safetensors")
    single = check_folder(folder, data, logits.detach())

    size = sum(file.stat().st_size for file in folder.iterdir())
    print(
        f"{name:13} loss {loss.item():.6f}  logits to {logits.abs().max().item():.2f}  {size / 1024:.0f} KiB"
        f"  finite differences {finite:.0e}  float32 {single:.0e}  smallest change {moved:.0e}"
    )


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("names", nargs="*", metavar="NAME")
    p.add_argument("--out", type=pathlib.Path, default=OUT)
    a = p.parse_args()
    known = models()
    unknown = [name for name in a.names if name not in known]
    if unknown:
        p.error(f"no model {', '.join(unknown)}; there are {', '.join(known)}")
    for name in a.names or known:
        make(name, *known[name], a.out)


if __name__ == "__main__":
    main()
