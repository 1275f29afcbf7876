"""Everyday operations on the CPU, beside PyTorch: one call on tensors of 512 x 512, in one sitting.

    pip install torch
    cargo build --release -p refrain --example ops
    python bench/ops.py [--threads 1,2] [--dtypes f32,bf16,f16,f64,i64,u8] [--rounds 3] [--all] [--side-by-side]
                        [--refrain target/release/examples/ops]

In each round both programs measure every operation (the median of 15 repeats), for one dtype after the other, so that a
change in the machine's speed meets both. A ratio is refrain's shortest median over the rounds to PyTorch's: below 1, refrain
is faster. The names of the operations are refrain's. A table for each number of threads has the median ratio, and in brackets
the share of ratios up to 1.2, by layout and dtype; then come all ratios above 1.5. With --all, each ratio has a line.

Both programs run on the first cores that this process may use (see taskset). With REFRAIN_CPU=avx2, PyTorch and its libraries
(oneDNN and MKL) are held to AVX2, too. With --side-by-side, all dtypes are measured at the same time, each on cores of its own:
for a machine with many idle cores.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import table

N, REPEATS, SHORTEST = 512, 15, 100e-6
# What holds PyTorch's own kernels, oneDNN's and MKL's to AVX2.
HELD_TO_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
DTYPES = ("f32", "bf16", "f16", "f64", "i64", "u8")


def torch_times(dtype_name, threads):
    """Prints a line per operation, as `cargo run --example ops` does."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
              "i64": torch.int64, "u8": torch.uint8}
    dtype = dtypes[dtype_name]
    is_float = dtype.is_floating_point

    def random(*shape):
        if is_float:
            return (torch.rand(shape) + 0.5).to(dtype)
        return torch.randint(1, 7, shape).to(dtype)

    def measure(name, layout, f):
        try:
            f()
        except (RuntimeError, NotImplementedError):
            return  # PyTorch does not have it for this dtype.
        begun = time.perf_counter()
        f()
        calls = min(1000, max(1, math.ceil(SHORTEST / max(time.perf_counter() - begun, 1e-9))))
        times = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            for _ in range(calls):
                f()
            times.append((time.perf_counter() - begun) / calls * 1e6)
        print(f"{name}\t{dtype_name}\t{layout}\t{statistics.median(times):.3f}")

    unary = {
        "square": torch.square, "relu": torch.relu, "clamp": lambda x: x.clamp(1, 3), "logical_not": torch.logical_not,
        "add_scalar": lambda x: x + 2, "mul_scalar": lambda x: x * 3, "lt_scalar": lambda x: x < 1,
        "maximum_scalar": lambda x: x.clamp(min=2), "remainder_scalar": lambda x: x % 2, "copy": lambda x: x.clone(memory_format=torch.contiguous_format),
        "sum": torch.sum, "sum 0": lambda x: x.sum(0), "sum 1": lambda x: x.sum(1), "max": torch.amax,
        "max 0": lambda x: x.amax(0), "max 1": lambda x: x.amax(1), "argmax 0": lambda x: x.argmax(0),
        "argmax 1": lambda x: x.argmax(1), "prod 0": lambda x: x.prod(0), "any 1": lambda x: x.any(1),
    }
    unary |= {f"to {name}": lambda x, to=to: x.to(to) for name, to in dtypes.items() if name not in ("f16", dtype_name)}
    if is_float:
        unary |= {
            "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "log": torch.log,
            "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "sin": torch.sin, "cos": torch.cos,
            "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
            "silu": F.silu, "erf": torch.erf, "floor": torch.floor, "round": torch.round, "softplus": F.softplus,
            "exp2": torch.exp2, "log2": torch.log2, "log10": torch.log10, "tan": torch.tan, "asin": torch.asin,
            "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "acosh": torch.acosh,
            "atanh": torch.atanh, "trunc": torch.trunc, "log_sigmoid": F.logsigmoid, "mish": F.mish,
            "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "isfinite": torch.isfinite,
            "elu": F.elu, "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "isnan": torch.isnan,
            "pow_scalar": lambda x: x ** 2.5, "div_scalar": lambda x: x / 3, "mean 0": lambda x: x.mean(0),
            "mean 1": lambda x: x.mean(1), "var 0": lambda x: x.var(0), "var 1": lambda x: x.var(1),
            "softmax 0": lambda x: x.softmax(0), "softmax 1": lambda x: x.softmax(1),
            "log_softmax 1": lambda x: x.log_softmax(1), "l2_normalize": lambda x: F.normalize(x, dim=1),
        }
    binary = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "lt": torch.lt, "eq": torch.eq,
        "logical_and": torch.logical_and, "remainder": torch.remainder,
        "div": torch.div if is_float else lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    }
    if is_float:
        binary |= {"pow": torch.pow, "atan2": torch.atan2, "hypot": torch.hypot, "logaddexp": torch.logaddexp}
    x, y = random(N, N), random(N, N)
    for layout, a in {"contiguous": x, "transposed": x.t(), "narrow": x[:, 64:448]}.items():
        for name, f in unary.items():
            measure(name, layout, lambda: f(a))
    pairs = {"contiguous": (x, y), "transposed": (x, y.t()), "narrow": (x[:, 64:448], y[:, 32:416]), "row": (x, random(N)),
             "column": (x, random(N, 1))}
    for layout, (a, b) in pairs.items():
        for name, f in binary.items():
            measure(name, layout, lambda: f(a, b))
        if is_float and a.shape == b.shape:
            measure("mse_loss", layout, lambda: F.mse_loss(a, b))

    rows, places = torch.randint(0, N, (N,)), torch.randint(0, N, (N, N))
    heads, image = random(8, N, 8, 16), random(64, 8, 12, 12)
    condition = random(N, N) < y
    one = {
        "concat 0": lambda: torch.cat([x, y], 0), "concat 1": lambda: torch.cat([x, y], 1),
        "stack 0": lambda: torch.stack([x, y], 0), "pad": lambda: F.pad(x, (7, 9, 3, 5)), "repeat": lambda: x.repeat(2, 2),
        "unfold": lambda: x.unfold(1, 16, 8).contiguous(),
        "unfold 2x2": lambda: image.unfold(2, 2, 2).unfold(3, 2, 2).contiguous(),
        "permute": lambda: heads.permute(0, 2, 1, 3).contiguous(), "index_select 0": lambda: x.index_select(0, rows),
        "index_select 1": lambda: x.index_select(1, rows), "gather 1": lambda: x.gather(1, places),
        "scatter_add 1": lambda: x.scatter_add(1, places, y), "where_cond": lambda: torch.where(condition, x, y),
        "zeros": lambda: torch.zeros(N, N, dtype=dtype), "one_hot": lambda: F.one_hot(rows, N).to(dtype),
    }
    if is_float:
        weight, bias, mean, var, vector = random(N), random(N), random(N), random(N), random(N, 1)
        p, q = random(16, 128, 64), random(16, 64, 128)
        qkv = random(8, 8, 64, 32), random(8, 8, 64, 32), random(8, 8, 64, 32)
        one |= {
            "matmul": lambda: x @ y, "matmul vector": lambda: x @ vector, "matmul batch": lambda: p @ q,
            "linear": lambda: F.linear(x, y, bias), "linear gelu": lambda: F.gelu(F.linear(x, y, bias), approximate="tanh"),
            "layer_norm": lambda: F.layer_norm(x, (N,), weight, bias), "rms_norm": lambda: F.rms_norm(x, (N,), weight, 1e-5),
            "batch_norm": lambda: F.batch_norm(x, mean, var, weight, bias, training=True),
            "cross_entropy": lambda: F.cross_entropy(x, rows), "attention": lambda: F.scaled_dot_product_attention(*qkv),
            "dropout": lambda: F.dropout(x, 0.3), "normal": lambda: torch.randn(N, N, dtype=dtype),
            "uniform": lambda: torch.rand(N, N, dtype=dtype),
        }
        measure("matmul", "transposed", lambda: x @ y.t())
    for name, f in one.items():
        measure(name, "contiguous", f)


def times(name, command, cores):
    """The microseconds of each operation that the command prints."""
    held = HELD_TO_AVX2 if os.environ.get("REFRAIN_CPU") == "avx2" else {}
    env = dict(os.environ, RAYON_NUM_THREADS=str(len(cores)), OMP_NUM_THREADS=str(len(cores)), **held)
    printed = table.output(name, command, env=env, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    if printed is None:
        raise SystemExit(1)
    lines = (line.split("\t") for line in printed.splitlines())
    return {tuple(key): float(us) for *key, us in lines}


def both(dtype, cores, refrain):
    """The microseconds of each operation by program."""
    commands = {"refrain": (refrain, dtype), "torch": (sys.executable, __file__, "--torch", dtype, len(cores))}
    return {program: times(f"{program} {dtype}", command, cores) for program, command in commands.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--threads", type=table.some_of(("1", "2", "4", "8", "16")), default=["1", "2"])
    p.add_argument("--dtypes", type=table.some_of(DTYPES), default=list(DTYPES))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--all", action="store_true", help="a line for each ratio")
    p.add_argument("--side-by-side", action="store_true", help="measure all dtypes at the same time")
    p.add_argument("--refrain", type=table.program, default=table.ROOT / "target/release/examples/ops", help="the program")
    p.add_argument("--torch", nargs=2, metavar=("DTYPE", "THREADS"), help="measure PyTorch alone, in this process")
    a = p.parse_args()
    if a.torch:
        import torch

        with torch.inference_mode():
            return torch_times(a.torch[0], int(a.torch[1]))

    cores, best = sorted(os.sched_getaffinity(0)), {}
    for threads in map(int, a.threads):
        at_once = len(a.dtypes) if a.side_by_side else 1
        if threads * at_once > len(cores):
            p.error(f"{threads} threads for {at_once} dtypes at a time; there are {len(cores)} cores")
        # Each dtype has cores of its own.
        of_dtype = {dtype: cores[i % at_once * threads:][:threads] for i, dtype in enumerate(a.dtypes)}
        for _ in range(a.rounds):
            with ThreadPoolExecutor(at_once) as pool:
                for measured in pool.map(lambda dtype: both(dtype, of_dtype[dtype], a.refrain), a.dtypes):
                    for program, cells in measured.items():
                        for cell, us in cells.items():
                            of = best.setdefault((threads, *cell), {})
                            of[program] = min(us, of.get(program, us))
    if alone := sorted({cell[1:] for cell, of in best.items() if "refrain" not in of}):
        sys.exit(f"PyTorch's cells that refrain does not measure: {alone}")
    ratios = {cell: of["refrain"] / of["torch"] for cell, of in best.items() if len(of) == 2}
    report(ratios, best, a)


def report(ratios, best, a):
    def shown(some):
        return f"{statistics.median(some):.2f} ({sum(r <= 1.2 for r in some) / len(some):.0%})" if some else ""

    columns = [*a.dtypes, "all"]
    for threads in map(int, a.threads):
        print(f"Threads: {threads}\n\n| operand | {' | '.join(columns)} |\n{'| --- ' * (len(columns) + 1)}|")
        of_threads = {cell[2:]: [] for cell in ratios if cell[0] == threads}
        for cell, ratio in ratios.items():
            if cell[0] == threads:
                of_threads[cell[2:]].append(ratio)
        for layout in [*dict.fromkeys(layout for _, layout in of_threads), "all"]:
            rows = [[r for (d, l), rs in of_threads.items() for r in rs if dtype in (d, "all") and layout in (l, "all")]
                    for dtype in columns]
            print(f"| {layout} | {' | '.join(map(shown, rows))} |")
        every = [r for rs in of_threads.values() for r in rs]
        print(f"\n{len(every)} ratios, {sum(r > 1.5 for r in every)} above 1.5, the largest {max(every):.1f}\n")
    print("| threads | operation | dtype | layout | refrain, us | PyTorch, us | ratio |\n| --- | --- | --- | --- | --- | --- | --- |")
    for cell, ratio in sorted(ratios.items(), key=lambda item: -item[1]):
        if a.all or ratio > 1.5:
            threads, name, dtype, layout = cell
            us = best[cell]
            print(f"| {threads} | {name} | {dtype} | {layout} | {us['refrain']:.1f} | {us['torch']:.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
