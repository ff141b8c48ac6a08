#!/usr/bin/env python3
"""The quickstart in PyTorch: what an independent implementation of the same training run reaches, and how fast.

A byte-level GPT (pre-norm, learned positions, tanh-approximated GELU, tied head, no dropout; 4 layers, hidden 192,
6 heads, sequence 128) is trained on data/moby_dick.txt: 500 steps of batch 16, AdamW, linear warm-up, cosine decay,
gradients clipped at global norm 1. The last 5 % of the bytes are held out.

Prints one JSON line on stdout: the validation loss in nats per byte, the seconds of training (without validation),
the median step in milliseconds, and the threads. Progress goes to stderr. The defaults are the quickstart; the
options after --compile change one choice each, to see what it is worth.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, BATCH = 4, 192, 6, 128, 256, 16
WARMUP_STEPS, FINAL_LR_FRACTION, BETA1, ADAM_EPS, DECAY, CLIP = 50, 0.1, 0.9, 1e-8, 0.1, 1.0
VALIDATION_FRACTION = 0.05
DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "moby_dick.txt"


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--compile", action="store_true", help="torch.compile the model; compilation counts as training")
    p.add_argument("--data", type=pathlib.Path, default=DATA)
    p.add_argument("--seed", type=int, default=0, help="of the initial weights and of the order of the windows")
    p.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    p.add_argument("--beta2", type=float, default=0.95)
    p.add_argument("--decay-on", choices=["matrices", "no-embeddings", "everything", "nothing"], default="matrices")
    p.add_argument("--init", choices=["scaled", "plain"], default="scaled", help="residual projections scaled or not")
    p.add_argument("--init-std", type=float, default=0.02, help="of all weights and embeddings")
    p.add_argument("--untied", action="store_true", help="a head of its own")
    p.add_argument("--no-bias", action="store_true", help="no biases in the linear layers")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.attn_norm = nn.LayerNorm(HIDDEN)
        self.query_key_value = nn.Linear(HIDDEN, 3 * HIDDEN, bias=bias)
        self.attn_out = nn.Linear(HIDDEN, HIDDEN, bias=bias)
        self.mlp_norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=bias)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=bias)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.query_key_value(self.attn_norm(x)).view(b, t, 3, HEADS, d // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.ModuleList(Block(not options.no_bias) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if not options.untied:
            self.head.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                residual = name.endswith(("attn_out.weight", "down.weight")) and options.init == "scaled"
                nn.init.normal_(p, std=options.init_std / (math.sqrt(2 * LAYERS) if residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, inputs, targets):
        """The mean cross-entropy over all tokens."""
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def decayed(name, parameter, where):
    match where:
        case "matrices":
            return parameter.dim() >= 2
        case "no-embeddings":
            return parameter.dim() >= 2 and not name.startswith(("tokens", "positions"))
        case "everything":
            return True
        case "nothing":
            return False


def build_optimizer(model, options):
    groups = {DECAY: [], 0.0: []}
    for name, p in model.named_parameters():
        groups[DECAY if decayed(name, p, options.decay_on) else 0.0].append(p)
    parameters = [{"params": params, "weight_decay": decay} for decay, params in groups.items() if params]
    return torch.optim.AdamW(parameters, lr=options.lr, betas=(BETA1, options.beta2), eps=ADAM_EPS, fused=True)


def learning_rate(step, options):
    """`step` counts from 0: peak/50 at the first step, the peak at step 49, a tenth of it at the end."""
    if step < WARMUP_STEPS:
        return options.lr * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, options.steps - WARMUP_STEPS)
    return options.lr * (FINAL_LR_FRACTION + (1 - FINAL_LR_FRACTION) * 0.5 * (1 + math.cos(math.pi * progress)))


def training_batches(data, seed):
    """Windows of SEQUENCE + 1 bytes, neighbours sharing one byte so that each byte is a target once per epoch;
    a new order every epoch."""
    starts = torch.arange(0, len(data) - SEQUENCE, SEQUENCE)
    generator, window = torch.Generator().manual_seed(seed), torch.arange(SEQUENCE + 1)
    while True:
        order = starts[torch.randperm(len(starts), generator=generator)]
        for chosen in order.split(BATCH):
            if len(chosen) == BATCH:
                batch = data[chosen[:, None] + window]
                yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


@torch.no_grad()
def validation_loss(model, data):
    """Mean over every held-out byte but the first, each predicted once, in windows that do not overlap; the last,
    shorter window counts by its length."""
    total = 0.0
    windows = [data[i : i + SEQUENCE + 1] for i in range(0, len(data) - 1, SEQUENCE)]
    tail = [windows.pop()] if len(windows[-1]) <= SEQUENCE else []
    groups = [torch.stack(windows[i : i + BATCH]) for i in range(0, len(windows), BATCH)]
    for batch in groups + [w[None] for w in tail]:
        total += model(batch[:, :-1], batch[:, 1:]).item() * batch[:, 1:].numel()
    return total / (len(data) - 1)


def main():
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    data = torch.from_numpy(np.fromfile(options.data, dtype=np.uint8).astype(np.int64))
    held_out = int(len(data) * VALIDATION_FRACTION)
    training, validation = data[:-held_out], data[-held_out:]
    model = Gpt(options)
    optimizer = build_optimizer(model, options)
    step_model = torch.compile(model) if options.compile else model
    step_seconds, started = [], time.perf_counter()
    for step, (inputs, targets) in zip(range(options.steps), training_batches(training, options.seed)):
        step_started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        loss = step_model(inputs, targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss, norm = loss.item(), norm.item()
        step_seconds.append(time.perf_counter() - step_started)
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step + 1}: loss {loss:.4f}, gradient norm {norm:.3f}", file=sys.stderr)
    seconds = time.perf_counter() - started
    report = {
        "val_loss": round(validation_loss(model, validation), 4),
        "seconds": round(seconds, 1),
        "step_ms_median": round(statistics.median(step_seconds) * 1e3, 1),
        "threads": options.threads,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
