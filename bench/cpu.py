"""refrain beside other frameworks on the CPU: one training step, in one sitting, as a table in Markdown.

    pip install torch jax optax                       # what is missing is left out of the table
    cargo build --release
    cargo build --release --manifest-path bench/candle/Cargo.toml
    python bench/cpu.py [--configs seed,small,large] [--threads 2] [--rounds 3]

Every program runs pinned to as many CPUs as there are threads. In each round all programs run one after the
other, so that a change in the machine's speed meets all of them; the table has the median over the rounds of each
program's own median, in milliseconds a step, and the ratio of the best other one to refrain.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("torch-eager", "torch-compiled", "jax-jit", "candle")
STEPS = {"seed": 20, "small": 10, "large": 4}


def command(program, config, threads):
    steps = STEPS[config]
    if program == "refrain":
        return [ROOT / "target/release/refrain", "--threads", threads, "bench", "step", "--device", "cpu", "--config", config,
                "--steps", steps, "--json"]
    if program == "candle":
        return [ROOT / "bench/candle/target/release/candle-step", config, steps, 5]
    return [sys.executable, ROOT / "bench/peers_cpu.py", "--here", "--configs", config, "--variants", program,
            "--threads", threads, "--steps", steps]


def measure(program, config, threads):
    """The program's median in milliseconds a step, or None if it can't run here."""
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads), JAX_PLATFORMS="cpu")
    try:
        ran = subprocess.run([str(word) for word in command(program, config, threads)], capture_output=True,
                             text=True, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, range(threads)))
    except FileNotFoundError as missing:
        print(f"{program}: {missing}", file=sys.stderr)
        return None
    if ran.returncode:
        print(f"{program} {config}: {ran.stderr.strip()[-400:]}", file=sys.stderr)
        return None
    if program == "refrain":
        return json.loads(ran.stdout.strip().splitlines()[-1])["median_us"] / 1e3
    return float(re.search(r"median +([0-9.]+) ms", ran.stdout)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default=",".join(STEPS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    programs = ("refrain", *PEERS)
    print("| ms a step | " + " | ".join(programs) + " | best other / refrain |")
    print("| --- " * (len(programs) + 2) + "|")
    for config in a.configs.split(","):
        times = {program: [] for program in programs}
        for _ in range(a.rounds):
            for program in programs:
                if (ms := measure(program, config, a.threads)) is not None:
                    times[program].append(ms)
        medians = {p: statistics.median(t) for p, t in times.items() if t}
        cells = [f"{medians[p]:.1f}" if p in medians else "" for p in programs]
        others = [medians[p] for p in PEERS if p in medians]
        ratio = f"{min(others) / medians['refrain']:.2f}" if others and "refrain" in medians else ""
        print(f"| {config} | " + " | ".join(cells) + f" | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
