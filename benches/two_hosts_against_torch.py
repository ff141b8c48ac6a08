#!/usr/bin/env python3
"""A training step of two hosts over a shaped link, ours against PyTorch's and against the emulated link, alternating in one run.

    cargo build --release --features mpi
    sudo python3 benches/two_hosts_against_torch.py --testbed DIR [--python PYTHON] [--rate 1] [--rounds 5] [--emulated]

DIR has scripts that bring two network namespaces up (`net.sh`) and start two ranks of MPI (`mpi2.sh`) or of the PyTorch peer
(`torch2.sh`) in them. Each round runs every side once, each a fresh pair of processes. Prints the median step of each run, then
the medians over the rounds and the ratios of pairs. With `--emulated` the other side is one process with the emulated link.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--testbed", required=True, type=pathlib.Path)
parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
parser.add_argument("--oases", default="target/release/oases", help="the program, built with the feature `mpi`")
parser.add_argument("--rate", type=float, default=1.0, help="of the link, Gbit/s")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--emulated", action="store_true")
options = parser.parse_args()

OURS = {
    "oases": [],
    "oases keep=all": ["schedule.keep=all"],
    "megatron": ["schedule.name=megatron", "schedule.sub_batches=1"],
}
THEIRS = {"torch blocking": "blocking", "torch sub-batches": "subbatch"}
# What tbf lets through of its rate, and a round trip of a message between the namespaces.
PAYLOAD, LATENCY = 0.957, "100 us"


def testbed(script, *arguments, **keywords):
    return subprocess.run([options.testbed / script, *arguments], check=True, capture_output=True, text=True, **keywords).stdout


def ours(launcher, changes):
    """The median step in ms, without the first, and all losses."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [word for change in [*changes, f"run.dir={folder}/run"] for word in ("--set", change)]
        subprocess.run([*launcher, options.oases, "train", "configs/two-hosts.toml", *sets], check=True, capture_output=True)
        steps = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    return statistics.median(step["step_ms"] for step in steps[1:]), [step["loss"] for step in steps]


def on_hosts(name):
    return ours([options.testbed / "mpi2.sh"], OURS[name])


def on_emulated_link(name):
    # A value with a space does not survive the shells of mpirun, so only this side can be told its link so.
    link = [f"link.bandwidth={PAYLOAD * options.rate} Gbit/s", f"link.latency={LATENCY}"]
    return ours([], [*OURS[name], *link])


def torch(name):
    output = testbed("torch2.sh", "--schedule", THEIRS[name], "--steps", "4", "--measure", "full", env={"PYTHON": options.python, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})
    return float(re.search(r"full ([\d.]+) ms", output)[1])


def ratio(label, above, below):
    pairs = [a / b for a, b in zip(above, below)]
    print(f"{label}: {statistics.median(pairs):.3f}, pairs from {min(pairs):.3f} to {max(pairs):.3f}")


times = {}
testbed("net.sh", "down")
testbed("net.sh", "up")
try:
    testbed("net.sh", "shape", f"{options.rate}gbit", "256kb")
    for _ in range(options.rounds):
        for name in OURS:
            step, losses = on_hosts(name)
            times.setdefault(name, []).append(step)
            if options.emulated:
                step, expected = on_emulated_link(name)
                times.setdefault(f"{name}, emulated", []).append(step)
                assert losses == expected, f"{name}: {losses} on hosts, {expected} on the emulated link"
        for name in [] if options.emulated else THEIRS:
            times.setdefault(name, []).append(torch(name))
        print(", ".join(f"{name} {steps[-1]:.0f} ms" for name, steps in times.items()), flush=True)
finally:
    testbed("net.sh", "down")
print("medians:", ", ".join(f"{name} {statistics.median(steps):.0f} ms" for name, steps in times.items()))
for name in OURS:
    if options.emulated:
        ratio(f"{name}, hosts over emulated", times[name], times[f"{name}, emulated"])
    else:
        for peer in THEIRS:
            ratio(f"{peer} over {name}", times[peer], times[name])
if not options.emulated:
    ratio("megatron over oases", times["megatron"], times["oases"])
