#!/usr/bin/env python3
"""A single-rank training step, ours against PyTorch, alternating in one run on one core.

    cargo build --release -p oases-train --example step
    python3 benches/step_against_torch.py --peer PATH/torch_gpt.py [--python PYTHON] [--rounds 5] [--cpu 0]

Each round runs the example and the peer once, without recomputation and with it, each a fresh process pinned to the core.
Prints every round's median step time, then the medians over the rounds and the ratio of tokens per second.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--peer", required=True, help="the PyTorch program")
parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
parser.add_argument("--step", default="target/release/examples/step", help="the example's binary")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--cpu", type=int, default=0)
options = parser.parse_args()

# The same model on both sides: h512 L8 heads8 s256 b4 v8192, tied head, f32, fused AdamW.
CASES = {
    "nothing recomputed": (["schedule=none"], ["--recompute", "none"]),
    "all recomputed": (["schedule=oases"], ["--recompute", "full"]),
}


def run(command):
    def pin():
        os.sched_setaffinity(0, {options.cpu})

    output = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=pin).stdout
    return json.loads(output.strip().splitlines()[-1])["ms_median"]


for name, (ours, theirs) in CASES.items():
    times = {"oases": [], "torch": []}
    for _ in range(options.rounds):
        times["oases"].append(run([options.step, "rounds=5", *ours]))
        times["torch"].append(run([options.python, options.peer, "--fused-adamw", "--steps", "5", *theirs]))
        print(f"{name}: oases {times['oases'][-1]:.1f} ms, torch {times['torch'][-1]:.1f} ms", flush=True)
    oases, torch = (statistics.median(times[side]) for side in ("oases", "torch"))
    ratios = [t / o for o, t in zip(times["oases"], times["torch"])]
    # The two of a pair run one after the other, so the ratio of a pair is what a machine of changing speed distorts least.
    print(
        f"{name}: medians {oases:.1f} and {torch:.1f} ms; tokens/s ratio {statistics.median(ratios):.3f}, the median of"
        f" pairs from {min(ratios):.3f} to {max(ratios):.3f}"
    )
