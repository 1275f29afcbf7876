"""refrain beside other frameworks on the CPU: one training step, in one sitting, as a table in Markdown.

    pip install torch jax optax                       # frameworks that are not installed are left out
    cargo build --release
    cargo build --release --manifest-path bench/candle/Cargo.toml
    python bench/cpu.py [--configs seed,small,large,cross] [--precisions f32,bf16]
                        [--variants torch-eager,torch-compiled,jax-jit,candle] [--threads 2] [--rounds 3]
                        [--refrain target/release/refrain]

Every program runs pinned to as many CPUs as there are threads. In each round all programs run one after the
other, so that a change in the machine's speed meets all of them; the table has the median over the rounds of each
program's own median, in milliseconds per step, and the ratio of the best other one to refrain. candle has PatchTST in f32.
"""

import os
import re
import sys

import table
from peers import VARIANTS

STEPS = {"seed": 20, "small": 10, "large": 4, "cross": 10}
PRECISIONS = ("f32", "bf16")


def measure(program, config, precision, a):
    """The program's median in microseconds per step, or None if it can't run here."""
    steps = STEPS[config]
    if program == "candle" and (config == "cross" or precision != "f32"):
        return None
    command = {
        "refrain": (a.refrain, "--threads", a.threads, "bench", "step", "--config", config, "--precision", precision,
                    "--device", "cpu", "--steps", steps, "--json"),
        "candle": (table.ROOT / "bench/candle/target/release/candle-step", config, steps, 5),
    }.get(program, (sys.executable, table.ROOT / "bench/peers.py", "--here", "--json", "--device", "cpu",
                    "--precision", precision, "--configs", config, "--variants", program, "--threads", a.threads,
                    "--steps", steps))
    printed = table.output(
        f"{program} {config} {precision}", command, preexec_fn=lambda: os.sched_setaffinity(0, range(a.threads)),
        env=dict(os.environ, RAYON_NUM_THREADS=str(a.threads), OMP_NUM_THREADS=str(a.threads)))
    if program == "candle":
        return printed and float(re.search(r"median +([0-9.]+) ms", printed)[1]) * 1e3
    return table.median_us(printed)


def main():
    parser = table.parser(__doc__, STEPS, (*VARIANTS["cpu"], "candle"), rounds=3)
    parser.add_argument("--precisions", type=table.some_of(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    programs = ("refrain", *a.variants)
    table.machine(a.refrain)
    table.header("ms per step", "precision", *programs)
    for config in a.configs:
        for precision in a.precisions:
            table.row([config, precision], programs, a.rounds, lambda program: measure(program, config, precision, a),
                      lambda us: f"{us / 1e3:.1f}")


if __name__ == "__main__":
    main()
