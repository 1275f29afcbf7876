"""The forecast of one window on the CPU, again and again: refrain's Predictor, PyTorch (eager) and ONNX Runtime.

    pip install torch onnx onnxscript onnxruntime safetensors
    refrain train --epochs 1 --device cpu --out runs/default
    python bench/predict.py --run runs/default [--refrain PROGRAM] [--rounds 5] [--forecasts 500] [--callers 2]

All three compute the same model: a PatchTST of the default kind (batch norm after each part, no RevIN), with the weights of the run.
The PyTorch model is exported by torch.onnx. Their forecasts of the newest window are compared first. Then the programs are measured in
turn, each in a process of its own: one caller on one CPU (the process is pinned to it), and several callers at once on as many
CPUs, every kernel on one thread. A forecast is a call with a window in memory that returns its values to the caller. The
table has the median over the rounds of each round's median, the shortest time of all, and the forecasts per second of all callers.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy

PROGRAMS = ("refrain", "torch", "onnx")
WARMUP = 50


def patchtst(run):
    """The model of a run folder."""
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file

    config = json.loads((run / "config.json").read_text())
    config = config.get("config", config)
    c, channels = config["model"], len(config["data"]["channels"])
    expected = {"name": "patchtst", "norm": "batch", "norm_position": "post", "revin": False, "activation": "gelu",
                "pooling": "flatten", "end_padding": True, "channel_attention": False, "residual_attention": False}
    for name, value in expected.items():
        if c[name] != value:
            sys.exit(f"{run}: {name} is {c[name]}, and this script knows {value}")

    class Norm(torch.nn.Module):
        def __init__(self, weights, name):
            super().__init__()
            for part in ("running_mean", "running_var", "weight", "bias"):
                self.register_buffer(part, weights[f"{name}.{part}"])

        def forward(self, h):
            h = F.batch_norm(h.flatten(0, 1), self.running_mean, self.running_var, self.weight, self.bias, False, 0.0,
                             c["norm_eps"])
            return h.unflatten(0, (channels, -1))

    class Linear(torch.nn.Linear):
        def __init__(self, weights, name):
            weight = weights[f"{name}.weight"]
            super().__init__(weight.shape[1], weight.shape[0])
            self.weight.data, self.bias.data = weight, weights[f"{name}.bias"]

    class Layer(torch.nn.Module):
        def __init__(self, weights, name):
            super().__init__()
            self.qkv, self.o = Linear(weights, f"{name}.attn.qkv"), Linear(weights, f"{name}.attn.o")
            self.up, self.down = Linear(weights, f"{name}.ffn.0"), Linear(weights, f"{name}.ffn.2")
            self.norm1, self.norm2 = Norm(weights, f"{name}.norm1"), Norm(weights, f"{name}.norm2")

        def forward(self, h):
            q, k, v = (x.unflatten(-1, (c["heads"], -1)).transpose(1, 2) for x in self.qkv(h).chunk(3, -1))
            h = self.norm1(h + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
            return self.norm2(h + self.down(F.gelu(self.up(h))))

    class PatchTst(torch.nn.Module):
        def __init__(self, weights):
            super().__init__()
            self.embed, self.head = Linear(weights, "embed"), Linear(weights, "head")
            self.register_buffer("pos", weights["pos"])
            self.layers = torch.nn.Sequential(*(Layer(weights, f"layers.{at}") for at in range(c["layers"])))

        def forward(self, x):  # [channels, context]
            x = torch.cat([x, x[:, -1:].expand(-1, c["stride"])], 1)
            h = self.embed(x.unfold(1, c["patch"], c["stride"])) + self.pos
            return self.head(self.layers(h).flatten(1))

    model = PatchTst(load_file(run / "model.safetensors")).eval().requires_grad_(False)
    return model, config, (channels, c["context"])


def caller(program, run, model_file):
    """A function that forecasts a window."""
    if program == "torch":
        import torch

        torch.set_num_threads(1)
        model, _, _ = patchtst(run)

        def forecast(window):
            with torch.inference_mode():
                return model(torch.from_numpy(window)).numpy()

        return forecast
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda window: session.run(None, {name: window})[0]


def measure(program, a):
    """Prints the times of one program in this process."""
    forecast = caller(program, a.run, a.model_file)
    windows = numpy.random.default_rng(0).standard_normal((16, *a.shape), dtype=numpy.float32)
    barrier, times = threading.Barrier(a.callers + 1), [[] for _ in range(a.callers)]

    def work(own):
        for at in range(WARMUP):
            forecast(windows[at % len(windows)])
        barrier.wait()
        for at in range(a.forecasts):
            begun = time.perf_counter()
            forecast(windows[at % len(windows)])
            own.append((time.perf_counter() - begun) * 1e6)

    threads = [threading.Thread(target=work, args=(own,)) for own in times]
    for thread in threads:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    every = [us for own in times for us in own]
    print(json.dumps({"median_us": statistics.median(every), "min_us": min(every), "per_second": len(every) / seconds}))


def run_one(program, a, callers):
    """The figures of one program in a process of its own; one caller is pinned to one CPU."""
    cpus = sorted(os.sched_getaffinity(0))[:callers]
    if program == "refrain":
        command = [a.refrain, "--threads", str(callers), "bench", "predict", "--model", a.run, "--callers", callers,
                   "--forecasts", a.forecasts, "--warmup", WARMUP, "--device", "cpu", "--json"]
    else:
        command = [sys.executable, __file__, "--run", a.run, "--here", program, "--callers", callers,
                   "--forecasts", a.forecasts, "--model-file", a.model_file, "--shape", *a.shape]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE,
                          preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    return json.loads(done.stdout.splitlines()[-1])


def check(a, config):
    """All programs forecast a window alike."""
    channels, context = a.shape
    window = numpy.random.default_rng(1).standard_normal((channels, context), dtype=numpy.float32)
    mean, std = (numpy.array(config["data"]["scaler"][name])[:, None] for name in ("mean", "std"))
    with tempfile.TemporaryDirectory() as folder:
        series = Path(folder) / "series.csv"
        start = datetime.datetime(2024, 1, 1)
        with series.open("w") as file:
            print("time", *config["data"]["channels"], sep=",", file=file)
            for row, values in enumerate((mean + std * window).T):
                print((start + datetime.timedelta(hours=row)).isoformat() + "Z", *values, sep=",", file=file)
        done = subprocess.run([a.refrain, "forecast", "--model", a.run, "--data", series, "--device", "cpu", "--json"],
                              check=True, stdout=subprocess.PIPE)
    rows = numpy.array([row[1:] for row in json.loads(done.stdout)["rows"]]).T
    expected = (rows - mean) / std
    for program in PROGRAMS[1:]:
        difference = abs(caller(program, a.run, a.model_file)(window) - expected).max()
        if not difference < 1e-3:
            sys.exit(f"{program} forecasts otherwise than refrain: by {difference} deviations")
        print(f"{program} and refrain: {difference:.1e} deviations apart at most")


def export(a):
    """Writes the ONNX file. Returns the configuration of the run."""
    import torch

    model, config, a.shape = patchtst(a.run)
    example = torch.zeros(a.shape)
    torch.onnx.export(model, (example,), str(a.model_file), dynamo=True, verbose=False)
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--refrain", default="refrain")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--forecasts", type=int, default=500, help="of each caller in a round")
    parser.add_argument("--callers", type=int, default=2, help="at once, beside one alone")
    parser.add_argument("--here", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--model-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=2, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.here:
        return measure(a.here, a)
    with tempfile.TemporaryDirectory() as folder:
        a.model_file = Path(folder) / "model.onnx"
        check(a, export(a))
        figures = {}
        for _ in range(a.rounds):
            for callers in dict.fromkeys((1, a.callers)):
                for program in PROGRAMS:
                    figures.setdefault((callers, program), []).append(run_one(program, a, callers))
    print("| callers | program | median, us | shortest, us | forecasts per second | median / refrain's |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (callers, program), rounds in figures.items():
        def median(of, key):
            return statistics.median(round[key] for round in of)

        us, ratio = median(rounds, "median_us"), median(rounds, "median_us") / median(figures[callers, "refrain"], "median_us")
        shortest = min(round["min_us"] for round in rounds)
        print(f"| {callers} | {program} | {us:,.0f} | {shortest:,.0f} | {median(rounds, 'per_second'):,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
