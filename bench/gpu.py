"""refrain beside other frameworks on one NVIDIA GPU: one training step, in one sitting, as a table in Markdown.

    pip install torch "jax[cuda13]" optax             # frameworks that are not installed are left out
    cargo build --release
    python bench/gpu.py [--configs seed,small,large,wide,long,cross] [--precisions f32,tf32,bf16]
                        [--variants torch-eager,torch-graph,torch-compiled-graph,jax-jit] [--rounds 1]
                        [--steps 200] [--refrain target/release/refrain]

For each configuration the others get ready (import, compile, first step) side by side and then wait; nothing but the
program being measured runs. In each round all programs are measured one after the other; the table has the median
over the rounds of each program's own median of 5 repeats, in microseconds per step, and the ratio of the best other
one to refrain.
"""

import os
import subprocess
import sys
import tempfile
import time

import table
from peers import CONFIGS, DEFAULTS, PRECISIONS, SLOW, VARIANTS

# The longest compilation first. XLA times kernels while it compiles: JAX does so before the eager steps load the GPU.
START = ("torch-compiled-graph", "jax-jit", "torch-graph", "torch-eager")


def steps(config, a):
    """Steps a repeat."""
    return max(1, a.steps // 10) if config in SLOW else a.steps


class Peer:
    """A process of peers.py that gets ready at once and measures when it is told to."""

    def __init__(self, variant, config, precision, steps, threads):
        self.name = f"{variant} {config} {precision}"
        self.errors = tempfile.TemporaryFile("w+")
        command = (sys.executable, table.ROOT / "bench/peers.py", "--here", "--wait", "--json", "--device", "cuda",
                   "--precision", precision, "--configs", config, "--variants", variant, "--steps", str(steps))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env=dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS=str(threads)))

    def line(self, start):
        """The next line that starts so, or None, with the reason on standard error, if the process ends first."""
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        if not self.errors.closed:  # said already
            self.process.wait()
            self.errors.seek(0)
            table.failed(self.name, self.errors.read())
            self.errors.close()
        return None

    def measure(self):
        try:
            print("again", file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return None
        return table.median_us(self.line("{"))

    def end(self):
        """The end of its input ends it."""
        self.process.communicate()


def ready(config, a):
    """The others for a configuration, by variant and precision."""
    began = time.monotonic()
    threads = max(1, (os.cpu_count() or 1) // len(a.precisions))
    peers = {}
    for variant in (v for v in START if v in a.variants):
        for precision in a.precisions:
            peer = peers[variant, precision] = Peer(variant, config, precision, steps(config, a), threads)
            if variant == "jax-jit":
                peer.line("ready")
    for (variant, _), peer in peers.items():
        if variant != "jax-jit":
            peer.line("ready")
    print(f"{config}: the others are ready after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return peers


def refrain(config, precision, a):
    return table.median_us(table.output(
        f"refrain {config} {precision}",
        (a.refrain, "bench", "step", "--config", config, "--precision", precision, "--device", "cuda",
         "--warmup", DEFAULTS["cuda"]["warmup"], "--steps", steps(config, a), "--json")))


def main():
    parser = table.parser(__doc__, CONFIGS, VARIANTS["cuda"], rounds=1)
    parser.add_argument("--precisions", type=table.some_of(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--steps", type=int, default=DEFAULTS["cuda"]["steps"], help="steps a repeat; of wide and long a tenth")
    a = parser.parse_args()
    programs = ("refrain", *a.variants)
    table.machine(a.refrain, gpu=True)
    table.header("us per step", "precision", *programs)
    for config in a.configs:
        peers = ready(config, a)
        for precision in a.precisions:
            def measure(program):
                return refrain(config, precision, a) if program == "refrain" else peers[program, precision].measure()

            table.row([config, precision], programs, a.rounds, measure, lambda us: f"{us:.0f}")
        for peer in peers.values():
            peer.end()


if __name__ == "__main__":
    main()
