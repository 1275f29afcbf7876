"""refrain beside PyTorch on configurations of PatchTST that nobody chose: they are drawn from a seed.

    pip install torch
    cargo build --release
    python bench/sweep.py --device cuda [--count 60] [--compiled 10]
    python bench/sweep.py --device cpu [--count 15] [--threads 2]
    python bench/sweep.py --device cuda --along batch,context,width,depth --plots FOLDER      # also needs matplotlib

A configuration has a context of 24 to 2,048, patches, a width of 16 to 768 (not only powers of two), heads of 4 to 128, one to
six layers, 32 to 8,192 rows, batch or layer norm before or after the branches, dropout, residual attention, RevIN, and a precision.
Others are drawn again: those whose step would take more arithmetic than --tflop.

A step is forward, mean squared error, backward, clipping at 1.0 and AdamW on random batches that lie in the device's memory. PyTorch
runs it in a CUDA graph on a GPU (with --compiled N the first N also through torch.compile), and eagerly on the CPU. refrain runs
`refrain bench step --config FILE`. The two programs run in turn, --rounds times; the table has their medians in microseconds. That both
train the same model is checked by the number of its parameters.
"""

import argparse
import gc
import json
import math
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import table

# Settings of PatchTST that are the same in every configuration.
SAME = {"model": "patchtst", "end_padding": False, "attention_dropout": 0.0, "channel_attention": False, "loss": "mse"}
# What is measured along one size at a time: the others stay.
BASE = {**SAME, "context": 336, "patch": 16, "stride": 8, "d_model": 128, "heads": 8, "layers": 3, "ffn": 256,
        "channels": 7, "batch_size": 64, "horizon": 96, "norm": "layer", "norm_position": "pre", "dropout": 0.0,
        "residual_attention": False, "revin": False}
ALONG = {
    "batch": ("batch_size", [4, 8, 16, 32, 64, 128, 256, 512, 1024]),
    "context": ("context", [48, 96, 192, 336, 512, 768, 1024, 1536, 2048]),
    "width": ("d_model", [16, 32, 64, 96, 128, 192, 256, 384, 512, 768]),
    "depth": ("layers", [1, 2, 3, 4, 5, 6]),
}
PRECISIONS = {"cpu": ("f32", "bf16"), "cuda": ("f32", "tf32", "bf16")}
SHOWN = ("context", "patches", "d_model", "heads", "layers", "ffn", "rows", "norm", "dropout", "residual", "revin", "precision")


def patches(c):
    return (c["context"] - c["patch"]) // c["stride"] + 1 + c["end_padding"]


def rows(c):
    return c["batch_size"] * c["channels"]


def flop(c):
    """Of a step: three times the products of the forward pass."""
    n, d = patches(c), c["d_model"]
    layer = n * (4 * d * d + 2 * d * c["ffn"]) + 2 * n * n * d
    return 6 * rows(c) * (n * c["patch"] * d + c["layers"] * layer + n * d * c["horizon"])


def memory(c):
    """Values that a step keeps, by a rough count."""
    n = patches(c)
    scores = 4 * c["heads"] * n if c["residual_attention"] else 0
    return rows(c) * n * (c["layers"] * (14 * c["d_model"] + 4 * c["ffn"] + scores) + 6 * c["d_model"])


def drawn(draw, a):
    """A configuration that is not too large."""
    while True:
        head = draw.choice([4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128])
        heads = draw.choice([1, 2, 3, 4, 6, 8, 12, 16])
        context = round(math.exp(draw.uniform(math.log(24), math.log(2048))))
        patch = draw.choice([p for p in (4, 8, 12, 16, 24, 32) if p <= context])
        channels = draw.choice([1, 7, 21])
        rows = math.exp(draw.uniform(math.log(32), math.log(8192)))
        c = {**SAME, "context": context, "patch": patch, "stride": draw.choice([patch, max(1, patch // 2)]),
             "d_model": head * heads, "heads": heads, "layers": draw.randint(1, 6), "ffn": head * heads * draw.choice([1, 2, 4]),
             "channels": channels, "batch_size": max(1, round(rows / channels)), "horizon": draw.choice([1, 24, 96, 192]),
             "norm": draw.choice(["batch", "layer"]), "norm_position": draw.choice(["pre", "post"]),
             "dropout": draw.choice([0.0, 0.1, 0.3]), "residual_attention": draw.random() < 0.3, "revin": draw.random() < 0.5,
             "precision": draw.choice(PRECISIONS[a.device])}
        if 16 <= c["d_model"] <= 768 and flop(c) <= a.tflop * 1e12 and memory(c) <= a.values:
            return c


class Torch:
    """The step in PyTorch, in this process."""

    def __init__(self, c, a, compiled):
        import torch
        from torch_forecasters import Forecaster
        from torch_step import captured

        self.cuda = a.device == "cuda"
        if not self.cuda:
            torch.set_num_threads(a.threads)
        torch.set_float32_matmul_precision("highest" if c["precision"] == "f32" else "high")
        torch.manual_seed(0)
        model = Forecaster(c).to(a.device)
        params = list(model.parameters())
        self.parameters = sum(p.numel() for p in params)
        loss_of = model
        if compiled:
            # torch.compile remembers the sizes of earlier models of the class; another size would make it compile for any.
            torch.compiler.reset()
            loss_of = torch.compile(model, dynamic=False)
        optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True, capturable=self.cuda)
        normal = lambda length: torch.randn(c["batch_size"], c["channels"], length, device=a.device)
        self.batches = [(normal(c["context"]), normal(c["horizon"])) for _ in range(4)]

        def update(x, y):
            with torch.autocast(a.device, torch.bfloat16, enabled=c["precision"] == "bf16"):
                loss = loss_of(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        self.update = captured(update, self.batches[0], warmups=3) if self.cuda else update

    def steps(self, count):
        """Microseconds a step."""
        begun = time.perf_counter()
        for i in range(count):
            loss = self.update(*self.batches[i % 4])
        float(loss)  # waits for the work
        return (time.perf_counter() - begun) / count * 1e6

    def enough(self, seconds):
        """How many steps take so long."""
        self.steps(2)
        return max(2, min(400, round(seconds * 1e6 / self.steps(2))))


def settings(c, folder):
    """A file for `refrain bench step --config`; its data is not read."""
    path = Path(folder) / "settings.toml"
    # Without data, the settings would be those of the bundled data.
    named = {"data": "none.csv", **c}
    lines = (f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in named.items() if name != "channels")
    path.write_text("\n".join(lines) + "\n")
    return path


def refrain(c, a, steps, folder):
    """The result of `refrain bench step`, or None if it fails."""
    threads = ("--threads", a.threads) if a.device == "cpu" else ()
    command = (a.refrain, *threads, "bench", "step", "--config", settings(c, folder), "--channels", c["channels"],
               "--device", a.device, "--steps", steps, "--repeats", 3, "--warmup", 3, "--json")
    pin = (lambda: os.sched_setaffinity(0, range(a.threads))) if a.device == "cpu" else None
    printed = table.output("refrain", command, preexec_fn=pin, timeout=a.limit)
    return printed and json.loads(printed.strip().splitlines()[-1])


def measured(c, a, compiled=False):
    """`c` with the medians of both programs; PyTorch's may be missing."""
    with tempfile.TemporaryDirectory() as folder:
        others = {}
        for name in ("torch", "compiled") if compiled else ("torch",):
            try:
                others[name] = Torch(c, a, name == "compiled")
            except Exception as error:  # out of memory, or nothing to compile with
                table.failed(name, error)
        steps = next(iter(others.values())).enough(a.seconds) if others else 10
        times = {name: [] for name in (*others, "refrain")}
        for _ in range(a.rounds):
            for name, other in others.items():
                times[name].append(statistics.median(other.steps(steps) for _ in range(3)))
            if (result := refrain(c, a, steps, folder)) is None:
                break
            times["refrain"].append(result["median_us"])
            if different := {other.parameters for other in others.values()} - {result["parameters"]}:
                raise ValueError(f"not the same model: {result['parameters']} parameters, {different} in PyTorch: {c}")
        others.clear()
        gc.collect()
        if a.device == "cuda":
            import torch

            torch.cuda.empty_cache()
    medians = {name: statistics.median(of) for name, of in times.items() if of}
    best = min((us for name, us in medians.items() if name != "refrain"), default=None)
    ratio = medians["refrain"] / best if best and "refrain" in medians else None
    return {**c, "us": medians, "ratio": ratio}


def shown(c):
    position = f"{c['norm']}, {c['norm_position']}"
    cells = {**c, "patches": patches(c), "rows": rows(c), "norm": position, "residual": "yes" if c["residual_attention"] else "",
             "revin": "yes" if c["revin"] else ""}
    return line(c, (str(cells[name]) for name in SHOWN))


def line(c, names):
    """Of a table: what was measured of `c`, after its names."""
    times = [f"{c['us'][name]:,.0f}" if name in c["us"] else "" for name in ("torch", "compiled", "refrain")]
    ratio = "" if c["ratio"] is None else f"{c['ratio']:.2f}"
    return f"| {' | '.join([*names, *times, ratio])} |"


def header(names=SHOWN):
    names = [*names, "PyTorch", "compiled", "refrain", "refrain / best other"]
    print(f"| {' | '.join(names)} |\n{'| --- ' * len(names)}|", flush=True)


def summary(done):
    """The median, best and worst ratio, in words."""
    ratios = [c["ratio"] for c in done if c["ratio"] is not None]
    if not ratios:
        return "nothing was measured"
    slower = sum(ratio > 1 for ratio in ratios)
    return (f"{len(ratios)} configurations: median {statistics.median(ratios):.2f} of the best other's time, best {min(ratios):.2f}, "
            f"worst {max(ratios):.2f}; {slower} slower")


def sweep(a):
    draw = random.Random(a.seed)
    configurations = [drawn(draw, a) for _ in range(a.count)]
    header()
    done = []
    for number, c in enumerate(configurations):
        done.append(measured(c, a, compiled=number < a.compiled))
        print(shown(done[-1]), flush=True)
    print(f"\nSeed {a.seed}, {summary(done)}.\n\nThe ten worst:\n")
    header()
    for c in sorted((c for c in done if c["ratio"] is not None), key=lambda c: -c["ratio"])[:10]:
        print(shown(c), flush=True)
    return done


def along(a):
    done = []
    header()
    for name in a.along:
        key, values = ALONG[name]
        for value in values:
            c = {**BASE, "precision": a.precision, key: value}
            c["ffn"] = 2 * c["d_model"]
            if flop(c) <= a.tflop * 1e12:
                done.append({**measured(c, a), "along": name})
                print(shown(done[-1]), flush=True)
    return done


def plot(done, a):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text
    from matplotlib import pyplot

    for name in a.along:
        key, _ = ALONG[name]
        of = [c for c in done if c["along"] == name]
        figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
        for program, label in (("refrain", "refrain"), ("torch", "PyTorch")):
            at = [(c[key], c["us"][program] / 1e3) for c in of if program in c["us"]]
            axes.plot(*zip(*at), marker="o", label=label)
        axes.set(xlabel=key, ylabel="ms a step", xscale="log", yscale="log")
        sizes = sorted({c[key] for c in of})
        axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")
        axes.grid(True, which="both", alpha=0.3)
        axes.legend()
        figure.savefig(Path(a.plots) / f"{a.device}-{a.precision}-{name}.svg", metadata={"Date": None})


def parser(doc, rounds, seconds, limit):
    """With the arguments that measuring needs."""
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--device", choices=PRECISIONS, default="cpu")
    p.add_argument("--threads", type=int, default=2, help="on the CPU")
    p.add_argument("--rounds", type=int, default=rounds)
    p.add_argument("--seconds", type=float, default=seconds, help="how long a repeat of PyTorch's steps takes")
    p.add_argument("--limit", type=float, default=limit, help="the most seconds that a run of refrain may take")
    p.add_argument("--refrain", type=table.program, default=table.ROOT / "target/release/refrain", help="the program")
    p.add_argument("--out", type=Path, help="a file for all results, as JSON")
    return p


def main():
    p = parser(__doc__, rounds=2, seconds=0.3, limit=600)
    p.add_argument("--count", type=int, help="configurations; 60 on a GPU, 15 on the CPU")
    p.add_argument("--compiled", type=int, default=0, help="how many of them also through torch.compile")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tflop", type=float, help="the most arithmetic of a step; 2 on a GPU, 0.05 on the CPU")
    p.add_argument("--along", type=table.some_of(ALONG), help="instead: one size at a time")
    p.add_argument("--precision", choices=("f32", "tf32", "bf16"), default="f32", help="with --along")
    p.add_argument("--plots", help="with --along: a folder for the drawings")
    a = p.parse_args()
    cuda = a.device == "cuda"
    a.count = a.count or (60 if cuda else 15)
    a.tflop = a.tflop or (2.0 if cuda else 0.05)
    a.values = 8e9 if cuda else 4e8
    if not cuda:
        os.sched_setaffinity(0, range(a.threads))
    table.machine(a.refrain, gpu=cuda)
    done = along(a) if a.along else sweep(a)
    if a.out:
        a.out.write_text(json.dumps(done))
    if a.along and a.plots:
        plot(done, a)


if __name__ == "__main__":
    main()
