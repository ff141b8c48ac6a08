#!/usr/bin/env python3
"""Golden values of a tiny GPT: logits, loss, every gradient, and three AdamW steps, all in float64.

    python make_gpt.py            writes gpt.safetensors (tied head) and gpt_untied.safetensors beside itself
    python make_gpt.py --check    also verifies what it wrote, and prints the errors:
                                  - every single gradient element against central finite differences in float64,
                                  - the model written out below against torch.nn.functional,
                                  - torch.optim.AdamW against its update written out in numpy,
                                  - the files against the safetensors package.

The forward pass is written from its formulas, gradients come from PyTorch autograd, and the optimizer is PyTorch's
own; nothing here is shared with the program under test. Weights are drawn in float64 and rounded to float32 once, so
that an f32 program starts from exactly the weights that the float64 figures belong to.

Shapes, with b batch, t time, d hidden, n heads, e = d/n, f = 4d, v vocabulary. Weights are [out, in].
The sizes are awkward on purpose: 30 tokens do not divide by 4, and a batch of 3 does not halve.

The file, one tensor per line (`N` stands for every parameter name):

    N              f32   the parameter
    tokens         i32   [b, t+1]; inputs are [:, :-1], targets are [:, 1:]
    logits         f64   [b, t, v]
    loss           f64   [1], mean cross-entropy over all b·t tokens, in nats
    grad.N         f64   d loss / d N
    after3.N       f64   N after three optimizer steps on the same batch            (gpt.safetensors only)
    losses3        f64   [3], the loss before each of the three steps               (gpt.safetensors only)
    norms3         f64   [3], the global gradient norm of each step before clipping (gpt.safetensors only)

Two things to know when comparing:

- The gradient of `layers.*.attn.key.bias` is zero in exact arithmetic: the bias adds the same number to all the scores
  of one query, and softmax ignores that. The file holds rounding noise (about 1e-18). Adam divides a gradient by its
  own size, so the noise of an f32 program (1e-9 and more, against eps = 1e-8) moves these biases by up to lr per step:
  compare `after3.*.key.bias` with a tolerance of 3·lr, or not at all. The losses do not depend on them.
- Everything else is well-conditioned (`min_grad_rms` in the metadata is the smallest root mean square of any other
  gradient). The same computation in f32 differs by about 1e-6 in the logits, 2e-7 in losses, norms and gradients, and
  1e-6 in `after3`.

Needs torch and numpy; safetensors only for --check. Another processor or another PyTorch may change the last bits of
the float64 figures; on one machine the bytes are the same every time.
"""

import argparse
import json
import math
import pathlib
import struct

import numpy as np
import torch

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, BATCH = 2, 16, 4, 8, 30, 3
NORM_EPS = 1e-5
SEED = 20230516
STEPS, LR, BETA1, BETA2, ADAM_EPS, DECAY, CLIP = 3, 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


# ---------------------------------------------------------------------------------------------------------- the model


def parameter_shapes(tied):
    """Names and shapes in the order in which the weights are drawn; the untied head comes last, so that both
    models share all their other weights."""
    d, f, v = HIDDEN, 4 * HIDDEN, VOCABULARY
    shapes = {"embed.tokens": (v, d), "embed.positions": (SEQUENCE, d)}
    for i in range(LAYERS):
        p = f"layers.{i}"
        shapes |= {f"{p}.attn.norm.gain": (d,), f"{p}.attn.norm.shift": (d,)}
        for projection in ("query", "key", "value", "out"):
            shapes |= {f"{p}.attn.{projection}.weight": (d, d), f"{p}.attn.{projection}.bias": (d,)}
        shapes |= {f"{p}.mlp.norm.gain": (d,), f"{p}.mlp.norm.shift": (d,)}
        shapes |= {f"{p}.mlp.up.weight": (f, d), f"{p}.mlp.up.bias": (f,)}
        shapes |= {f"{p}.mlp.down.weight": (d, f), f"{p}.mlp.down.bias": (d,)}
    shapes |= {"head.norm.gain": (d,), "head.norm.shift": (d,)}
    if not tied:
        shapes |= {"head.weight": (v, d)}
    return shapes


def draw(tied):
    """Tokens and float32 weights: gains uniform in 1 ± 0.2, all else normal, so that no path is silent."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    tokens = rng.integers(0, VOCABULARY, size=(BATCH, SEQUENCE + 1)).astype(np.int32)
    weights = {}
    for name, shape in parameter_shapes(tied).items():
        if name.endswith(".gain"):
            value = rng.uniform(0.8, 1.2, size=shape)
        elif name.endswith((".bias", ".shift")):
            value = rng.normal(0.0, 0.1, size=shape)
        else:
            value = rng.normal(0.0, 0.2, size=shape)
        weights[name] = value.astype(np.float32)
    return tokens, weights


def layer_norm(x, gain, shift):
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + NORM_EPS) * gain + shift


def gelu_tanh(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def attention(q_btd, k_btd, v_btd):
    b, t, d = q_btd.shape
    e = d // HEADS
    # Head h owns the columns h·e .. (h+1)·e of each projection.
    q, k, v = (x.reshape(b, t, HEADS, e).transpose(1, 2) for x in (q_btd, k_btd, v_btd))
    scores_bntt = q @ k.transpose(-1, -2) / math.sqrt(e)
    future_tt = torch.ones(t, t, dtype=torch.bool).triu(1)
    scores_bntt = scores_bntt.masked_fill(future_tt, float("-inf"))
    exps = torch.exp(scores_bntt - scores_bntt.amax(-1, keepdim=True))
    context_bnte = exps / exps.sum(-1, keepdim=True) @ v
    return context_bnte.transpose(1, 2).reshape(b, t, d)


def forward(w, tokens):
    """Logits [b, t, v] and the mean cross-entropy."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embed.tokens"][inputs] + w["embed.positions"]
    for i in range(LAYERS):
        p = f"layers.{i}"
        y = layer_norm(x, w[f"{p}.attn.norm.gain"], w[f"{p}.attn.norm.shift"])
        y = attention(*(linear(y, f"{p}.attn.{name}") for name in ("query", "key", "value")))
        x = x + linear(y, f"{p}.attn.out")
        y = layer_norm(x, w[f"{p}.mlp.norm.gain"], w[f"{p}.mlp.norm.shift"])
        x = x + linear(gelu_tanh(linear(y, f"{p}.mlp.up")), f"{p}.mlp.down")
    x = layer_norm(x, w["head.norm.gain"], w["head.norm.shift"])
    logits = x @ w.get("head.weight", w["embed.tokens"]).T
    log_normaliser = torch.logsumexp(logits, -1)
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return logits, (log_normaliser - chosen).mean()


def as_f64(weights):
    return {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in weights.items()}


# -------------------------------------------------------------------------------------------------------- the figures


def optimise(weights, tokens):
    """Three steps: loss, gradients, clip by the global norm, AdamW. Weight decay only where there are ≥ 2 dims."""
    w = as_f64(weights)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": DECAY},
            {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=LR,
        betas=(BETA1, BETA2),
        eps=ADAM_EPS,
    )
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss = forward(w, tokens)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    return {name: p.detach().numpy() for name, p in w.items()}, losses, norms


def figures(tied):
    """All tensors of one file, and its metadata."""
    tokens_i32, weights = draw(tied)
    tokens = torch.tensor(tokens_i32, dtype=torch.int64)
    w = as_f64(weights)
    logits, loss = forward(w, tokens)
    loss.backward()
    tensors = dict(weights)
    tensors["tokens"] = tokens_i32
    tensors["logits"] = logits.detach().numpy()
    tensors["loss"] = np.array([loss.item()])
    tensors |= {f"grad.{name}": p.grad.numpy() for name, p in w.items()}
    rms = {n: p.grad.square().mean().sqrt().item() for n, p in w.items() if not n.endswith("key.bias")}
    smallest = min(rms, key=rms.get)
    metadata = {
        "model": "gpt, pre-norm, learned positions, causal, tanh-approximated gelu, biases everywhere except the head",
        "head": "tied to embed.tokens" if tied else "head.weight",
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "feed_forward": 4 * HIDDEN,
        "sequence": SEQUENCE,
        "vocabulary": VOCABULARY,
        "batch": BATCH,
        "norm_eps": NORM_EPS,
        "attention_scale": "1/sqrt(hidden/heads)",
        "weight_layout": "[out, in]",
        "loss_reduction": "mean over batch*sequence tokens, nats",
        "init": "gains uniform 0.8..1.2, biases and shifts normal std 0.1, weights and embeddings normal std 0.2; "
        f"drawn in float64 (numpy PCG64, seed {SEED}), rounded to float32",
        "zero_gradients": "layers.*.attn.key.bias: zero in exact arithmetic, rounding noise here; "
        "compare after3 of these within 3*lr or not at all",
        "min_grad_rms": f"{rms[smallest]:.3e} ({smallest})",
        "precision": "float64 throughout, from the float32 weights",
        "written_by": "testdata/golden/make_gpt.py",
    }
    if tied:
        after, losses, norms = optimise(weights, tokens)
        tensors |= {f"after3.{name}": value for name, value in after.items()}
        tensors["losses3"] = np.array(losses)
        tensors["norms3"] = np.array(norms)
        metadata |= {
            "optimizer": "AdamW as in PyTorch: p *= 1 - lr*decay; m, v; p -= lr * m_hat / (sqrt(v_hat) + eps)",
            "optimizer_steps": STEPS,
            "lr": f"{LR} (constant)",
            "beta1": BETA1,
            "beta2": BETA2,
            "adam_eps": ADAM_EPS,
            "weight_decay": DECAY,
            "weight_decay_on": "tensors with at least 2 dims: all .weight, embed.tokens and embed.positions; "
            "not biases, gains, shifts",
            "clip": f"global norm {CLIP}, as in PyTorch: gradients *= min(1, clip / (norm + 1e-6))",
            "losses3": "the loss before each step; losses3[0] equals loss",
            "norms3": "the global gradient norm of each step before clipping",
        }
    return tensors, {key: str(value) for key, value in metadata.items()}


# ----------------------------------------------------------------------------------------------------------- the file


def write(path, tensors, metadata):
    """The safetensors format by hand, because the package writes metadata in an arbitrary order: header length as
    u64, JSON header padded with spaces to 8 bytes, then the tensors, the widest type first so that all are aligned."""
    codes = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    header, data = {"__metadata__": metadata}, bytearray()
    for name in sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n)):
        value = np.ascontiguousarray(tensors[name])
        start = len(data)
        data += value.astype(value.dtype.newbyteorder("<")).tobytes()
        header[name] = {"dtype": codes[value.dtype], "shape": list(value.shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


# --------------------------------------------------------------------------------------------------------- the checks


def finite_difference_error(tensors, tied):
    """The largest |autograd - finite difference| over every element of every gradient (fourth-order central)."""
    tokens = torch.tensor(tensors["tokens"], dtype=torch.int64)
    w = {name: torch.tensor(tensors[name], dtype=torch.float64) for name in parameter_shapes(tied)}
    step, worst, worst_name = 3e-4, 0.0, ""
    with torch.no_grad():
        for name, p in w.items():
            flat, gradient = p.view(-1), tensors[f"grad.{name}"].reshape(-1)
            for j in range(flat.numel()):
                centre, loss = flat[j].item(), {}
                for k in (-2, -1, 1, 2):
                    flat[j] = centre + k * step
                    loss[k] = forward(w, tokens)[1].item()
                flat[j] = centre
                numeric = (8 * (loss[1] - loss[-1]) - (loss[2] - loss[-2])) / (12 * step)
                if abs(numeric - gradient[j]) > worst:
                    worst, worst_name = abs(numeric - gradient[j]), f"{name}[{j}]"
    return worst, worst_name


def library_error(tensors, tied):
    """The largest difference of the logits from the same model in terms of torch.nn.functional."""
    import torch.nn.functional as F

    tokens = torch.tensor(tensors["tokens"], dtype=torch.int64)
    w = {name: torch.tensor(tensors[name], dtype=torch.float64) for name in parameter_shapes(tied)}
    heads = lambda x: x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    x = F.embedding(tokens[:, :-1], w["embed.tokens"]) + w["embed.positions"]
    for i in range(LAYERS):
        part = lambda name: (w[f"layers.{i}.{name}.weight"], w[f"layers.{i}.{name}.bias"])
        norm = lambda name: (w[f"layers.{i}.{name}.norm.gain"], w[f"layers.{i}.{name}.norm.shift"])
        y = F.layer_norm(x, (HIDDEN,), *norm("attn"), eps=NORM_EPS)
        q, k, v = (heads(F.linear(y, *part(f"attn.{name}"))) for name in ("query", "key", "value"))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.linear(y, *part("attn.out"))
        y = F.layer_norm(x, (HIDDEN,), *norm("mlp"), eps=NORM_EPS)
        x = x + F.linear(F.gelu(F.linear(y, *part("mlp.up")), approximate="tanh"), *part("mlp.down"))
    x = F.layer_norm(x, (HIDDEN,), w["head.norm.gain"], w["head.norm.shift"], eps=NORM_EPS)
    logits = F.linear(x, w["embed.tokens"] if tied else w["head.weight"])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return max(np.abs(logits.numpy() - tensors["logits"]).max(), abs(loss.item() - tensors["loss"][0]))


def optimizer_error(tensors):
    """The largest difference of the parameters after three steps from AdamW and the clip written out, the key
    biases left out: their gradients are noise, which Adam enlarges."""
    tokens = torch.tensor(tensors["tokens"], dtype=torch.int64)
    p = {name: tensors[name].astype(np.float64) for name in parameter_shapes(True)}
    m = {name: np.zeros_like(value) for name, value in p.items()}
    v = {name: np.zeros_like(value) for name, value in p.items()}
    for step in range(1, STEPS + 1):
        w = as_f64(p)
        forward(w, tokens)[1].backward()
        norm = math.sqrt(sum(float((x.grad**2).sum()) for x in w.values()))
        scale = min(1.0, CLIP / (norm + 1e-6))
        for name in p:
            g = w[name].grad.numpy() * scale
            if p[name].ndim >= 2:
                p[name] *= 1.0 - LR * DECAY
            m[name] = BETA1 * m[name] + (1.0 - BETA1) * g
            v[name] = BETA2 * v[name] + (1.0 - BETA2) * g * g
            m_hat, v_hat = m[name] / (1.0 - BETA1**step), v[name] / (1.0 - BETA2**step)
            p[name] -= LR * m_hat / (np.sqrt(v_hat) + ADAM_EPS)
    return max(np.abs(p[name] - tensors[f"after3.{name}"]).max() for name in p if not name.endswith("key.bias"))


def check(path, tensors, metadata, tied):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == set(tensors) and file.metadata() == metadata
        for name, value in tensors.items():
            read = file.get_tensor(name)
            assert read.dtype == value.dtype and np.array_equal(read, value), name
    worst, name = finite_difference_error(tensors, tied)
    print(f"  finite differences: max |error| {worst:.2e} at {name}")
    print(f"  torch.nn.functional: max |error| {library_error(tensors, tied):.2e}")
    assert worst < 1e-10 and library_error(tensors, tied) < 1e-12
    if tied:
        print(f"  AdamW written out: max |error| {optimizer_error(tensors):.2e}")
        assert optimizer_error(tensors) < 1e-12


def main():
    arguments = argparse.ArgumentParser(description="writes the golden values of a tiny GPT")
    arguments.add_argument("--check", action="store_true", help="verify gradients, optimizer and files (half a minute)")
    verify = arguments.parse_args().check
    for tied, file_name in ((True, "gpt.safetensors"), (False, "gpt_untied.safetensors")):
        path = pathlib.Path(__file__).parent / file_name
        tensors, metadata = figures(tied)
        write(path, tensors, metadata)
        norm = math.sqrt(sum(float((tensors[f"grad.{n}"] ** 2).sum()) for n in parameter_shapes(tied)))
        print(f"{file_name}: {path.stat().st_size} bytes, loss {tensors['loss'][0]:.12f}, gradient norm {norm:.12f}")
        print(f"  smallest gradient rms: {metadata['min_grad_rms']}")
        if tied:
            print(f"  losses3 {tensors['losses3'].tolist()}\n  norms3 {tensors['norms3'].tolist()}")
        if verify:
            check(path, tensors, metadata, tied)


if __name__ == "__main__":
    main()
