"""Convolutions, a GRU, an LSTM, a filter of frequencies, linear algebra, and operations that sort, scan, transform or resize, beside PyTorch, in one sitting, as a table in Markdown.

    pip install torch
    cargo build --release -p refrain-nn --example layers
    python bench/layers.py [--device cpu|cuda] [--precisions f32,tf32,bf16] [--threads 4] [--rounds 3] [--only GRU]
                           [--refrain target/release/examples/layers]

In each round both programs measure everything (the median of 7 repeats); the table has the median over the rounds, in
microseconds. refrain's times are of a recorded step and of eager code; PyTorch's of eager code, and on a GPU of a CUDA graph,
too. The ratio is refrain's recorded step to the faster one of PyTorch: below 1, refrain is faster. Data is random. On a CPU
every program runs pinned to as many CPUs as there are threads.

Images are 32 x 64 x 32 x 32; convolutions are 3 x 3, of 64 to 64 channels. The ResNet block has two of them, with batch norm in
training. The GRU has 128 sequences of 24 time steps of 64 features, and 64 hidden ones; the LSTM has the same sequences, and two
layers of 128 hidden ones. The filter multiplies the frequencies of 128 x 336 steps x 64 features by weights. Rows and columns are those of 1024 x 1024 numbers. Resizing takes the
images, or the same numbers as series of 1024 steps. Linear algebra has symmetric positive definite matrices and 8 right sides; PyTorch's
functions are those that do not check the result (`cholesky_ex`, `solve_ex`). With gradients: forward, and the gradients by the
input and all parameters. bf16 is autocast in PyTorch.
"""

import argparse
import math
import os
import statistics
import sys
import time

import table

REPEATS, SHORTEST = 7, 0.01
PRECISIONS = ("f32", "tf32", "bf16")


def torch_times(device, precisions, only):
    """Prints a line per operation, as `cargo run --example layers` does."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(1)
    gpu = device == "cuda"
    if gpu:
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def synchronize():
        if gpu:
            torch.cuda.synchronize()

    def captured(f):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                f()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = f()
        graph.kept = kept
        return graph.replay

    def measure(name, precision, f):
        if not name.startswith(only):
            return
        for way in ("eager", "graph") if gpu else ("eager",):
            try:
                g = captured(f) if way == "graph" else f
            except RuntimeError as error:
                print(f"{name} {precision}: no graph: {str(error).splitlines()[0]}", file=sys.stderr)
                torch.cuda.synchronize()
                continue

            def run(calls):
                synchronize()
                begun = time.perf_counter()
                for _ in range(calls):
                    g()
                synchronize()
                return time.perf_counter() - begun

            run(3)
            calls = min(1000, max(1, math.ceil(SHORTEST / (run(4) / 4))))
            us = statistics.median(run(calls) / calls * 1e6 for _ in range(REPEATS))
            print(f"{name}\t{precision}\t{way}\t{us:.3f}", flush=True)

    def conv():
        return nn.Conv2d(64, 64, 3, padding=1).to(device)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = conv(), conv()
            self.bn1, self.bn2 = nn.BatchNorm2d(64).to(device), nn.BatchNorm2d(64).to(device)

        def forward(self, x):
            return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + x)

    class Outputs(nn.Module):
        def __init__(self, recurrent):
            super().__init__()
            self.recurrent = recurrent.to(device)

        def forward(self, x):
            return self.recurrent(x)[0]

    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(0.02 * torch.randn(169, 64, dtype=torch.complex64, device=device))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.weight, n=336, dim=1)

    images, series = torch.randn(32, 64, 32, 32, device=device), torch.randn(128, 24, 64, device=device)
    for precision in precisions:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "f32"
        for name, module, x in (
            ("conv2d", conv(), images), ("ResNet block", Block(), images), ("GRU", Outputs(nn.GRU(64, 64, batch_first=True)), series),
            ("LSTM", Outputs(nn.LSTM(64, 128, 2, batch_first=True)), series),
            ("filter", Filter(), torch.randn(128, 336, 64, device=device)),
        ):
            def forward(x):
                # Without the cache, a graph has the conversions of the parameters that refrain's step has.
                with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
                    return module(x)

            def alone():
                with torch.no_grad():
                    return forward(x)

            x.requires_grad_(True)
            wanted, dy = [x, *module.parameters()], torch.randn_like(alone())
            measure(name, precision, alone)
            measure(f"{name}, with gradients", precision, lambda: torch.autograd.grad(forward(x), wanted, dy))
    x = 1 + 1e-3 * torch.randn(1024, 1024, device=device)
    whole = x.flatten()
    for name, f in {
        "sort of 1M": lambda: whole.sort(dim=0, stable=True), "argsort of 1M": lambda: whole.argsort(dim=0, stable=True),
        "topk, 10 of 1M": lambda: whole.topk(10), "topk, 1000 of 1M": lambda: whole.topk(1000),
        "cumsum of 1M": lambda: whole.cumsum(0), "cumprod of 1M": lambda: whole.cumprod(0),
        "sort of rows": lambda: x.sort(dim=1, stable=True), "topk, 10 of each row": lambda: x.topk(10, 1),
        "topk, 10 of each column": lambda: x.topk(10, 0),
        "FFT of 1M": lambda: torch.fft.rfft(whole), "FFT of rows": lambda: torch.fft.rfft(x),
        "FFT of columns": lambda: torch.fft.rfft(x, dim=0),
        "cumsum of rows": lambda: x.cumsum(1), "cumsum of columns": lambda: x.cumsum(0), "cumprod of rows": lambda: x.cumprod(1),
    }.items():
        with torch.inference_mode():
            measure(name, "f32", f)
    resize = F.interpolate
    for name, f in {
        "bilinear to 64": lambda x: resize(x, (64, 64), mode="bilinear"), "bicubic to 50": lambda x: resize(x, (50, 50), mode="bicubic"),
        "nearest to 64": lambda x: resize(x, (64, 64), mode="nearest"),
        "adaptive pooling to 7": lambda x: F.adaptive_avg_pool2d(x, 7),
        "linear, 1024 to 96": lambda x: resize(x.flatten(2), 96, mode="linear"),
        "circular padding": lambda x: F.pad(x, (3, 3, 3, 3), mode="circular"),
        "reflected padding": lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"),
    }.items():
        def alone():
            with torch.no_grad():
                return f(images)

        dy = torch.randn_like(alone())
        measure(f"resize: {name}", "f32", alone)
        measure(f"resize: {name}, with gradients", "f32", lambda: torch.autograd.grad(f(images), images, dy))
    for count, n in ((512, 32), (1, 1024)):
        x = torch.randn(count, n, n, device=device)
        x = x @ x.mT / n + torch.eye(n, device=device)
        l, b = torch.linalg.cholesky(x), torch.randn(count, n, 8, device=device)
        for name, a, f in (
            ("cholesky", x, lambda a: torch.linalg.cholesky_ex(a).L),
            ("triangular solve", l, lambda a: torch.linalg.solve_triangular(a, b, upper=False)),
            ("solve", x, lambda a: torch.linalg.solve_ex(a, b).result),
        ):
            def alone():
                with torch.no_grad():
                    return f(a)

            a = a.detach().requires_grad_(True)
            dy = torch.randn_like(alone())
            measure(f"{name} of {count} x {n} x {n}", "f32", alone)
            measure(f"{name} of {count} x {n} x {n}, with gradients", "f32", lambda: torch.autograd.grad(f(a), a, dy))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--precisions", type=table.some_of(PRECISIONS), help="of the layers; without, f32 on a CPU and all on a GPU")
    p.add_argument("--threads", type=int, default=4, help="on a CPU")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", default="", metavar="NAME", help="measure only what has a name that begins so")
    p.add_argument("--refrain", type=table.program, default=table.ROOT / "target/release/examples/layers", help="the program")
    p.add_argument("--torch", action="store_true", help="measure PyTorch alone, in this process")
    a = p.parse_args()
    gpu = a.device == "cuda"
    precisions = a.precisions or (list(PRECISIONS) if gpu else ["f32"])
    if a.torch:
        return torch_times(a.device, precisions, a.only)

    commands = {"refrain": (a.refrain, a.device, *precisions, *[a.only] * bool(a.only)),
                "torch": (sys.executable, __file__, "--torch", "--device", a.device, "--precisions", ",".join(precisions), "--only", a.only)}
    threads = os.cpu_count() if gpu else a.threads
    env = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    times = {}
    for _ in range(a.rounds):
        for program, command in commands.items():
            printed = table.output(program, command, env=env, preexec_fn=lambda: os.sched_setaffinity(0, range(threads)))
            for line in (printed or "").splitlines():
                name, precision, way, us = line.split("\t")
                times.setdefault((name, precision), {}).setdefault((program, way), []).append(float(us))
    table.machine(gpu=gpu)
    ways = [("refrain", "recorded"), ("refrain", "eager"), ("torch", "eager"), *([("torch", "graph")] if gpu else [])]
    names = {"refrain": "refrain", "torch": "PyTorch"}
    print(f"| operation | precision | {' | '.join(f'{names[p]} {way}' for p, way in ways)} | ratio |\n{'| --- ' * (len(ways) + 3)}|")
    for (name, precision), of in times.items():
        medians = {way: statistics.median(of[way]) for way in ways if way in of}
        others = [us for (program, _), us in medians.items() if program == "torch"]
        mine = medians.get(("refrain", "recorded"))
        ratio = f"{mine / min(others):.2f}" if mine and others else ""
        cells = (f"{medians[way]:.1f}" if way in medians else "" for way in ways)
        print(f"| {name} | {precision} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    main()
