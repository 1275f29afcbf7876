"""A training step of whole models that users write: a GPT, a ResNet, recurrent layers and others, beside PyTorch, as a table in Markdown.

    pip install torch
    cargo build --release -p refrain-nn --example models
    python bench/models.py [--device cpu|cuda] [--precisions f32,tf32,bf16] [--threads 2] [--rounds 2] [--only lstm] [--compiled]
                           [--refrain target/release/examples/models]

`crates/refrain-nn/examples/models` has the models in refrain, with their sizes, and `torch_models.py` in PyTorch, of its own layers. A step
is forward and backward pass, clipping of the gradients' norm at 1, and AdamW, on one random batch; refrain's is recorded, PyTorch's eager
code and, on a GPU, the whole of it in a CUDA graph, with --compiled also after torch.compile. Each time is the median of 5 repeats,
and the table has the median over the rounds, in microseconds. The ratio is refrain's time to the fastest one of PyTorch: below 1, refrain
is faster. bf16 is autocast in PyTorch. On a CPU every program runs pinned to as many CPUs as there are threads.
"""

import argparse
import math
import os
import statistics
import sys
import time

import table

REPEATS, SHORTEST = 5, 0.1
PRECISIONS = ("f32", "tf32", "bf16")


def torch_times(a):
    """Prints a line per model, precision and way, as the example does."""
    import torch
    from torch_models import MODELS

    gpu = a.device == "cuda"
    if gpu:
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for name, build in MODELS.items():
        if not name.startswith(a.only):
            continue
        for precision in a.precisions:
            for way in ("eager", *["graph"] * gpu, *["compiled"] * a.compiled):
                try:
                    us = torch_time(torch, build, precision, way, a)
                except Exception as error:
                    print(f"{name} {precision} {way}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
                    continue
                print(f"{name}\t{precision}\t{way}\t{us:.3f}", flush=True)


def torch_time(torch, build, precision, way, a):
    torch.manual_seed(1)
    tf32 = precision != "f32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model = build(a.device).to(a.device)
    parameters = list(model.parameters())
    gpu = a.device == "cuda"
    in_graph = gpu and way != "eager"
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=True, capturable=in_graph)
    loss_of = torch.compile(model) if way == "compiled" else model

    def update():
        with torch.autocast(a.device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=not in_graph):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    step = update
    if in_graph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                update()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = update()
        step = graph.replay

    def run(calls):
        if gpu:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            step()
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    run(3)
    calls = min(1000, max(1, math.ceil(SHORTEST / (run(4) / 4))))
    return statistics.median(run(calls) / calls * 1e6 for _ in range(REPEATS))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--precisions", type=table.some_of(PRECISIONS), help="without, f32 on a CPU and all on a GPU")
    p.add_argument("--threads", type=int, default=2, help="on a CPU")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--only", default="", metavar="NAME", help="measure only models whose name begins so")
    p.add_argument("--compiled", action="store_true", help="PyTorch after torch.compile, too; that takes minutes")
    p.add_argument("--refrain", type=table.program, default=table.ROOT / "target/release/examples/models", help="the program")
    p.add_argument("--torch", action="store_true", help="measure PyTorch alone, in this process")
    a = p.parse_args()
    gpu = a.device == "cuda"
    a.precisions = a.precisions or (list(PRECISIONS) if gpu else ["f32"])
    if a.torch:
        return torch_times(a)

    commands = {
        "refrain": (a.refrain, a.device, *a.precisions, *[a.only] * bool(a.only)),
        "torch": (sys.executable, __file__, "--torch", "--device", a.device, "--precisions", ",".join(a.precisions), "--only", a.only,
                  *["--compiled"] * a.compiled),
    }
    threads = os.cpu_count() if gpu else a.threads
    env = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    times = {}
    for _ in range(a.rounds):
        for program, command in commands.items():
            printed = table.output(program, command, env=env, preexec_fn=lambda: os.sched_setaffinity(0, range(threads)))
            for line in (printed or "").splitlines():
                name, precision, *way, us = line.split("\t")
                times.setdefault((name, precision), {}).setdefault((program, *way), []).append(float(us))
    table.machine(gpu=gpu)
    ways = [("refrain",), ("torch", "eager"), *[("torch", "graph")] * gpu, *[("torch", "compiled")] * a.compiled]
    shown = ["refrain", *(f"PyTorch {way}" for _, way in ways[1:])]
    print(f"| model | precision | {' | '.join(shown)} | ratio |\n{'| --- ' * (len(ways) + 3)}|")
    for (name, precision), of in times.items():
        medians = {way: statistics.median(of[way]) for way in ways if way in of}
        others = [us for way, us in medians.items() if way != ("refrain",)]
        mine = medians.get(("refrain",))
        ratio = f"{mine / min(others):.2f}" if mine and others else ""
        cells = (f"{medians[way]:,.0f}" if way in medians else "" for way in ways)
        print(f"| {name} | {precision} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    main()
