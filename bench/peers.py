"""One full training step in PyTorch and JAX, on the CPU or on one NVIDIA GPU.

    pip install torch jax optax        # torch-compiled needs a C++ compiler; a GPU: "jax[cuda13]"
    python bench/peers.py [--device cpu] [--precision f32] [--configs seed,small,large,wide,long,cross] [--variants ...]
                          [--threads 2] [--warmup N] [--steps N] [--reps 5] [--json]

A step is forward, loss (MSE; cross-entropy for `cross`), backward, clipping of the global gradient norm at 1.0 and AdamW
(lr 1e-3, weight decay 0.01) on random batches that lie in the device's memory and rotate; the models are those of
`refrain bench step`: PatchTST, and attention across assets for `cross`. Each variant runs in a process of its own, on the
CPU pinned to as many CPUs as there are threads. A line a variant: the median, smallest and largest mean of `--steps` steps over `--reps` repeats, in microseconds, and the last loss.

| variant | device | what it is |
| --- | --- | --- |
| torch-eager | both | PyTorch with its fused AdamW |
| torch-compiled | cpu | the model through torch.compile |
| torch-graph | cuda | the whole step, AdamW with it, captured in a CUDA graph |
| torch-compiled-graph | cuda | the same of the model through torch.compile |
| jax-jit | both | the whole step through jax.jit |

tf32 (GPU alone) lets matrix products round their operands to TF32. bf16 is autocast in PyTorch; in JAX activations
are bf16, while parameters, norms and the loss are f32. f32 is strict on both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from table import some_of

KEYS = ("context", "patch", "stride", "d", "heads", "layers", "ffn", "rows", "output")
CONFIGS = {
    name: dict(zip(KEYS, values))
    for name, values in {
        "seed": (24, 8, 4, 64, 4, 2, 256, 64 * 20, 1),
        "small": (336, 16, 8, 16, 4, 3, 128, 128 * 7, 96),
        "large": (336, 16, 8, 128, 16, 3, 256, 32 * 21, 96),
        "wide": (512, 16, 8, 512, 8, 6, 2048, 64 * 21, 96),
        "long": (2048, 16, 4, 256, 4, 3, 1024, 8 * 7, 96),
    }.items()
}
CONFIGS["cross"] = {"sources": 12, "features": 32, "d": 256, "heads": 4, "layers": 2, "ffn": 1024, "rows": 256,
                    "classes": 3}
# A step of these takes a hundred times as long as one of the others: on the CPU, minutes.
SLOW = ("wide", "long")
VARIANTS = {
    "cpu": ("torch-eager", "torch-compiled", "jax-jit"),
    "cuda": ("torch-eager", "torch-graph", "torch-compiled-graph", "jax-jit"),
}
PRECISIONS = ("f32", "tf32", "bf16")
DEFAULTS = {"cpu": {"warmup": 5, "steps": 20}, "cuda": {"warmup": 30, "steps": 200}}


def measure(config, variant, a):
    if a.device == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])
    c = CONFIGS[config]
    if variant == "jax-jit":
        from jax_step import jax_step

        step = jax_step(c, a)
    else:
        from torch_step import torch_step

        step = torch_step(c, variant, a)
    if not a.wait:
        return report(config, variant, step, a)
    float(step(0))
    print("ready", flush=True)
    for _ in sys.stdin:
        report(config, variant, step, a)


def report(config, variant, step, a):
    for i in range(a.warmup):
        loss = float(step(i))
    times = []
    for _ in range(a.reps):
        start = time.perf_counter()
        for i in range(a.steps):
            loss = step(i)
        loss = float(loss)  # waits for the work
        times.append((time.perf_counter() - start) / a.steps * 1e6)
    median = statistics.median(times)
    if a.json:
        print(json.dumps({"config": config, "variant": variant, "precision": a.precision, "device": a.device,
                          "steps": a.steps, "repeats": a.reps, "median_us": median, "min_us": min(times),
                          "max_us": max(times), "last_loss": loss}), flush=True)
    else:
        print(f"{config:6} {variant:21} {a.precision:5} median {median:9.1f} us  min {min(times):9.1f}"
              f"  max {max(times):9.1f}  loss {loss:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=VARIANTS, default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--configs", type=some_of(CONFIGS), help="all without it; on the CPU all but wide and long")
    parser.add_argument("--variants", help="the device's, separated by commas; all without it")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--warmup", type=int, help="5 on the CPU, 30 on a GPU")
    parser.add_argument("--steps", type=int, help="steps a repeat; 20 on the CPU, 200 on a GPU")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="a line of JSON a variant")
    parser.add_argument("--here", action="store_true", help="in this process: one configuration and variant")
    parser.add_argument("--wait", action="store_true", help="with --here: say ready, then measure once a line of input")
    a = parser.parse_args()
    if a.configs is None:
        a.configs = [config for config in CONFIGS if a.device == "cuda" or config not in SLOW]
    for name, value in DEFAULTS[a.device].items():
        if getattr(a, name) is None:
            setattr(a, name, value)
    try:
        variants = some_of(VARIANTS[a.device])(a.variants) if a.variants else VARIANTS[a.device]
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --variants: {error}")
    if a.device == "cpu" and a.precision == "tf32":
        parser.error("tf32 is the GPU's; choose f32 or bf16 on the CPU")
    if a.here:
        if len(a.configs) != 1 or len(variants) != 1:
            parser.error("--here takes one configuration and one variant")
        return measure(a.configs[0], variants[0], a)
    common = [f"--{name}={getattr(a, name)}" for name in ("device", "precision", "threads", "warmup", "steps", "reps")]
    failed = False
    for config in a.configs:
        for variant in variants:
            one = ["--configs", config, "--variants", variant, *(["--json"] if a.json else [])]
            if subprocess.run([sys.executable, __file__, "--here", *common, *one]).returncode:
                print(f"{config:6} {variant:21} {a.precision:5} failed", file=sys.stderr, flush=True)
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
