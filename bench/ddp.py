"""PyTorch's DistributedDataParallel on the steps of `refrain bench step`: one rank alone, then all ranks, as a table in Markdown.

    torchrun --nproc-per-node 2 bench/ddp.py [--configs seed,small,large,wide,long,cross] [--precisions f32,tf32,bf16]
             [--variants eager,compiled,graph,compiled-graph] [--strong] [--steps 200] [--warmup 30] [--repeats 5]

The models and batches are those of peers.py. Each rank has the batch of the configuration (weak scaling), or with --strong
its part of it. Times are microseconds per step: the median over the repeats, of the slowest rank. `exposed` is what a step of all ranks takes
longer than one of a rank alone with as many rows; `efficiency` is the speed of all ranks divided by their number and the speed of
one rank. A variant that does not run here has a line with the reason. The same columns for refrain:

    torchrun --no-python --nproc-per-node 2 refrain bench step --config seed --precision bf16 --device cuda --steps 200 --warmup 30
"""

import argparse
import contextlib
import datetime
import gc
import os
import statistics
import time

# A capture does not allow the thread that looks for errors.
os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
# NVLink multicast stays off, as in refrain.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist

from peers import CONFIGS, PRECISIONS, SLOW
from table import some_of
from torch_step import torch_step

VARIANTS = ("eager", "graph", "compiled", "compiled-graph")


def median_us(step, a, steps):
    """The median over the repeats of this rank."""
    for i in range(a.warmup):
        float(step(i))
    times = []
    for _ in range(a.repeats):
        dist.barrier(a.hosts)
        start = time.perf_counter()
        for i in range(steps):
            loss = step(i)
        float(loss)  # waits for the work
        times.append((time.perf_counter() - start) / steps * 1e6)
    return statistics.median(times)


def slowest(name, work, a):
    """The largest time of all ranks; or None, with the reason printed, if it fails on one of them."""
    try:
        mine = work()
    except Exception as error:  # whatever a compiler or a capture raises
        mine = f"{type(error).__name__}: {error}"
    gc.collect()
    if a.device == "cuda":
        torch.cuda.empty_cache()
    all_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(all_ranks, mine, a.hosts)
    failed = next((said for said in all_ranks if isinstance(said, str)), None)
    if failed is None:
        return max(all_ranks)
    if dist.get_rank() == 0:
        print(f"| {name} | does not run: {' '.join(failed.split())[:200]} |", flush=True)
    return None


def distributed(a):
    """Makes a model one rank's part of the distributed one."""

    def wrap(model):
        # A capture needs a model that was wrapped beside the default stream.
        beside = torch.cuda.stream(torch.cuda.Stream()) if a.device == "cuda" else contextlib.nullcontext()
        with beside:
            ids = [torch.cuda.current_device()] if a.device == "cuda" else None
            wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        if a.device == "cuda":
            torch.cuda.synchronize()
        return wrapped

    return wrap


def measure(config, precision, variant, a):
    """Prints a line of the table."""
    ranks, c = dist.get_world_size(), CONFIGS[config]
    steps = max(1, a.steps // 10) if config in SLOW else a.steps
    a.precision = precision
    own = dict(c, rows=c["rows"] // ranks) if a.strong else c
    name = f"{config} | {precision} | {variant}"
    kind = f"torch-{variant}"
    alone = slowest(name, lambda: median_us(torch_step(own, kind, a), a, steps), a)
    whole = slowest(name, lambda: median_us(torch_step(c, kind, a), a, steps), a) if a.strong else alone
    if alone is None or whole is None:
        return
    together = slowest(name, lambda: median_us(torch_step(own, kind, a, distributed(a)), a, steps), a)
    if together is not None and dist.get_rank() == 0:
        efficiency = whole / together / (ranks if a.strong else 1)
        times = [whole] * a.strong + [alone, together, together - alone]
        print(f"| {name} | {' | '.join(f'{us:.0f}' for us in times)} | {efficiency:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=some_of(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--precisions", type=some_of(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--variants", type=some_of(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--strong", action="store_true", help="share the batch among the ranks")
    parser.add_argument("--steps", type=int, default=200, help="steps a repeat; of wide and long a tenth")
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    a = parser.parse_args()
    if a.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if a.device == "cuda" else "gloo", timeout=datetime.timedelta(seconds=120))
    a.hosts = dist.new_group(backend="gloo")
    ranks = dist.get_world_size()
    if dist.get_rank() == 0:
        scaling = "strong" if a.strong else "weak"
        device = torch.cuda.get_device_name() if a.device == "cuda" else "CPU"
        print(f"{ranks} ranks, {scaling} scaling, {device}, PyTorch {torch.__version__}, {datetime.date.today()}\n")
        columns = ["config", "precision", "DDP", *["1 rank, all rows"] * a.strong, "1 rank", f"{ranks} ranks", "exposed", "efficiency"]
        print(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|", flush=True)
    for variant in a.variants:
        for config in a.configs:
            for precision in a.precisions:
                measure(config, precision, variant, a)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
