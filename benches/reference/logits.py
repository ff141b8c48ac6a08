#!/usr/bin/env python3
"""Loads a folder with `transformers` and computes the logits of given tokens, so that an export can be compared.

    python logits.py MODEL_DIR --tokens TOKENS.json [--out LOGITS.safetensors]
    python logits.py MODEL_DIR --tokens TOKENS.json --against OTHER_DIR      two folders on the same tokens
    python logits.py MODEL_DIR --expected expected.safetensors               a golden file of exported.py

TOKENS.json is a list of equally long lists of token ids, or an object with `input_ids` and, where the model takes
them, `attention_mask` and `token_type_ids`.

The model is of the class that config.json names, BertForMaskedLM or a causal one; without a head, the last hidden
state takes the place of the logits. transformers must find every tensor that it wants and want every tensor that it
finds, or this ends with an error and exit code 1. Computes in float64 throughout unless `--dtype float32` is given.

Prints one JSON line: the shape, the largest logit, the sum, and the largest difference from `--against` or
`--expected` over all positions that the attention mask holds. The logits themselves go into `--out`, as `logits`.
"""

import argparse
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.utils import logging

from precision import wholly_float64

# What a folder may have and the class does without: a buffer that older versions saved.
BUFFERS = ("position_ids", ".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")


def load(folder):
    """In float32, from a folder that has all that its class wants and nothing else."""
    architecture = (AutoConfig.from_pretrained(folder).architectures or [""])[0]
    kinds = {"MaskedLM": AutoModelForMaskedLM, "CausalLM": AutoModelForCausalLM, "LMHeadModel": AutoModelForCausalLM}
    kind = next((kinds[ending] for ending in kinds if architecture.endswith(ending)), AutoModel)
    options = dict(dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    model, found = kind.from_pretrained(folder, **options)
    found = {name: sorted(key for key in map(str, keys) if not key.endswith(BUFFERS)) for name, keys in found.items()}
    if any(found.values()):
        sys.exit(f"error: {folder} does not fit {type(model).__name__}: {json.dumps(found)}")
    return model.eval()


@torch.no_grad()
def compute(folder, inputs, dtype):
    model = load(folder)
    if dtype == torch.float32:
        output = model(**inputs)
    else:
        with wholly_float64():
            # Made anew, because a model computes its rotary frequencies when it is made.
            double = type(model)._from_config(model.config, attn_implementation="eager").double().eval()
            double.load_state_dict(model.state_dict())
            output = double(**inputs)
    return output.logits if "logits" in output else output.last_hidden_state


def read_tokens(path):
    tokens = json.loads(path.read_text())
    tokens = tokens if isinstance(tokens, dict) else {"input_ids": tokens}
    return {name: torch.tensor(values, dtype=torch.int64) for name, values in tokens.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=pathlib.Path, metavar="MODEL_DIR")
    given = p.add_mutually_exclusive_group(required=True)
    given.add_argument("--tokens", type=pathlib.Path, help="JSON with token ids")
    given.add_argument("--expected", type=pathlib.Path, help="tokens and logits of exported.py")
    p.add_argument("--against", type=pathlib.Path, metavar="OTHER_DIR", help="another folder, computed likewise")
    p.add_argument("--out", type=pathlib.Path, help="safetensors file for the logits")
    p.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    a = p.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dtype = {"float64": torch.float64, "float32": torch.float32}[a.dtype]

    golden = load_file(a.expected) if a.expected else None
    taken = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: golden[name] for name in taken if name in golden} if golden else read_tokens(a.tokens)
    logits = compute(a.folder, inputs, dtype)
    line = {"shape": list(logits.shape), "largest": logits.abs().max().item(), "sum": logits.double().sum().item()}
    held = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])) == 1
    if golden:
        line["from_expected"] = (logits - golden["logits"])[held].abs().max().item()
    if a.against:
        line["from_other"] = (logits - compute(a.against, inputs, dtype))[held].abs().max().item()
    if a.out:
        save_file({"logits": logits.contiguous()}, a.out)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
