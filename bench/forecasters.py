"""Forecasters of refrain beside those of neuralforecast and transformers on ETTh1: errors and seconds of an epoch.

    pip install neuralforecast transformers       # programs that are not installed are left out
    cargo build --release
    python bench/forecasters.py --data ETTh1.csv [--models ...] [--programs ...] [--seeds 1,2,3] [--epochs N] [--device cpu]

All programs get the same task: the usual split (8,640 rows of training, 2,880 of validation, 2,880 of test), values standardised by
the training part, 96 rows to forecast, all 2,785 test windows, models of the same size (SETTINGS below), the same number of windows
a step, steps an epoch (refrain takes the last, smaller batch, too) and epochs, Adam with the same learning rates. refrain keeps the weights with the least validation loss, and so
does the loop that trains the model of transformers here; neuralforecast keeps the last ones.

Each model is trained with the squared error, for MSE and MAE, and, where the program can, with quantiles of 5, 10, 50, 90 and 95 %,
for the CRPS: twice the mean pinball loss. iTransformer and TSMixer of neuralforecast 3.3.0 give the values of all channels for one
quantile after another, and its quantile loss reads all quantiles of one channel after another; "neuralforecast-reordered" is the
same with the values in the order that the loss reads. Before that, each program trains alone for `--timing` epochs, with the first
of these losses that it has: the table has the median of all but the first epoch, with the validation. On a machine that other
programs use, too, take processor seconds (`--processor`) and one thread (RAYON_NUM_THREADS=1 OMP_NUM_THREADS=1). The other trainings
run `--jobs` at a time.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from table import ROOT, machine, program, some_of

TRAIN, VALIDATION, TEST = 8640, 2880, 2880
HORIZON, CHANNELS = 96, 7
LEVELS = (80, 90)
QUANTILES = (0.05, 0.1, 0.5, 0.9, 0.95)

# `batch` counts windows of all channels. `schedule` is that of the learning rate: constant, or one cycle as PyTorch's OneCycleLR. `paper`
# has MSE and MAE of the paper, for these rows of context.
SETTINGS = {
    "patchtst": {"context": 336, "batch": 128, "lr": 1e-4, "schedule": "constant", "epochs": 30, "paper": (0.375, 0.399)},
    "itransformer": {"context": 96, "batch": 32, "lr": 1e-4, "schedule": "constant", "epochs": 5, "paper": (0.386, 0.405)},
    "tsmixer": {"context": 512, "batch": 64, "lr": 1e-3, "schedule": "constant", "epochs": 10, "paper": (0.361, 0.392)},
    "nlinear": {"context": 336, "batch": 32, "lr": 5e-3, "schedule": "one-cycle", "epochs": 5, "paper": (0.374, 0.394)},
    "dlinear": {"context": 336, "batch": 32, "lr": 5e-3, "schedule": "one-cycle", "epochs": 5, "paper": (0.375, 0.399)},
}
REORDERED = "neuralforecast-reordered"
PROGRAMS = ("refrain", "neuralforecast", REORDERED, "transformers")
LOSSES = ("mse", "quantile")
# Those that see all channels of a moment together.
JOINT = ("itransformer", "tsmixer")


def can(program, model, loss):
    if program == REORDERED:
        return model in JOINT and loss == "quantile"
    return program != "transformers" or (model == "patchtst" and loss == "mse")


def steps(model):
    """The steps of an epoch."""
    s = SETTINGS[model]
    return (TRAIN - s["context"] - HORIZON + 1) // s["batch"]


def standardised(path):
    """The series [14400, 7] in units of the training part, and the time stamps."""
    import pandas

    table = pandas.read_csv(path)[: TRAIN + VALIDATION + TEST]
    values = table.iloc[:, 1:].to_numpy("float64")
    train = values[:TRAIN]
    return ((values - train.mean(0)) / train.std(0)).astype("float32"), pandas.to_datetime(table.iloc[:, 0])


def errors(truth, forecast, quantiles=None):
    """Of forecasts, and of quantiles with a last dimension of their own."""
    import numpy

    e = truth.astype("float64") - forecast
    found = {"mse": float((e**2).mean()), "mae": float(abs(e).mean())}
    if quantiles is not None:
        levels, e = numpy.array(QUANTILES), truth[..., None].astype("float64") - numpy.sort(quantiles, -1)
        found["crps"] = float(2 * numpy.maximum(levels * e, (levels - 1) * e).mean())
    return found


def processor_seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_refrain(a, model, loss, seed, epochs, is_timed, folder):
    s = SETTINGS[model]
    run = Path(folder) / f"{model}-{loss}-{seed}-{epochs}"
    preset = {"patchtst": "etth1", "itransformer": "itransformer-etth1", "tsmixer": "tsmixer-etth1"}.get(model)
    command = [a.refrain, "train", "--data", a.data, "--split", "ett", "--out", run, "--seed", seed, "--epochs", epochs,
               "--patience", epochs, "--context", s["context"], "--horizon", HORIZON, "--batch-size", s["batch"], "--lr", s["lr"],
               "--schedule", s["schedule"], "--weight-decay", 0, "--clip", 0, "--device", a.device, "--json", "--quiet"]
    command += ["--preset", preset] if preset else ["--model", model]
    command += ["--loss", "quantile", "--levels", ",".join(map(str, LEVELS))] if loss == "quantile" else []
    begun = processor_seconds_of_children()
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    outcome = json.loads(done.stdout.splitlines()[-1])
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    if a.processor and is_timed:
        seconds = [processor_seconds_of_children() - begun]
        if epochs > 1:
            # What is not an epoch is the same in a training of one.
            one = by_refrain(a, model, loss, seed, 1, is_timed, folder)["seconds"][0]
            seconds += [(seconds[0] - one) / (epochs - 1)] * (epochs - 1)
    return {"mse": outcome["test_mse"], "mae": outcome["test_mae"], "crps": outcome.get("test_crps"), "seconds": seconds,
            "parameters": outcome["parameters"]}


def reordered(kind):
    """A model of neuralforecast with its values [windows, rows, quantiles * channels] as [.., channels * quantiles]."""

    class Reordered(kind):
        def forward(self, windows):
            return super().forward(windows).unflatten(-1, (-1, CHANNELS)).transpose(-1, -2).flatten(-2)

    return Reordered


def neuralforecast_model(a, name, model, loss, seed, epochs, callbacks):
    from neuralforecast import models
    from neuralforecast.losses.pytorch import MSE, MQLoss
    from torch.optim.lr_scheduler import OneCycleLR

    s = SETTINGS[model]
    per_step = s["batch"] if model in JOINT else s["batch"] * CHANNELS
    kind, options = {
        "patchtst": (models.PatchTST, {
            "encoder_layers": 3, "n_heads": 4, "hidden_size": 16, "linear_hidden_size": 128, "dropout": 0.3, "fc_dropout": 0.3,
            "patch_len": 16, "stride": 8, "revin_affine": True, "revin_subtract_last": False, "batch_normalization": True}),
        "itransformer": (models.iTransformer, {
            "n_series": CHANNELS, "hidden_size": 256, "n_heads": 8, "e_layers": 2, "d_ff": 256, "dropout": 0.1}),
        "tsmixer": (models.TSMixer, {"n_series": CHANNELS, "n_block": 2, "ff_dim": 64, "dropout": 0.9}),
        "nlinear": (models.NLinear, {}),
        "dlinear": (models.DLinear, {"moving_avg_window": 25}),
    }[model]
    if s["schedule"] == "one-cycle":
        of_cycle = {"max_lr": s["lr"], "total_steps": steps(model) * epochs, "cycle_momentum": False}
        options |= {"lr_scheduler": OneCycleLR, "lr_scheduler_kwargs": of_cycle}
    if name == REORDERED:
        kind = reordered(kind)
    return kind(
        h=HORIZON, input_size=s["context"], loss=MQLoss(level=list(LEVELS)) if loss == "quantile" else MSE(),
        max_steps=steps(model) * epochs, val_check_steps=steps(model), learning_rate=s["lr"], batch_size=CHANNELS,
        windows_batch_size=per_step, inference_windows_batch_size=4096, scaler_type="identity", random_seed=seed, alias="it",
        accelerator="gpu" if a.device == "cuda" else "cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, callbacks=callbacks, **options)


def by_neuralforecast(a, name, model, loss, seed, epochs, is_timed):
    import pandas
    import pytorch_lightning
    from neuralforecast import NeuralForecast

    clock = time.process_time if a.processor else time.perf_counter
    at = []  # neuralforecast copies its models, and the callbacks with them.

    class Times(pytorch_lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step % steps(model) == 0:
                at.append(clock())

    values, stamps = standardised(a.data)
    forecaster = neuralforecast_model(a, name, model, loss, seed, epochs, [Times()])
    # Numbers in the place of time stamps: there is no calendar in these models.
    columns = [pandas.DataFrame({"unique_id": f"c{c}", "ds": range(len(stamps)), "y": values[:, c]}) for c in range(CHANNELS)]
    table, job = pandas.concat(columns), NeuralForecast(models=[forecaster], freq=1)
    found = {"parameters": sum(p.numel() for p in forecaster.parameters() if p.requires_grad)}
    if is_timed:
        job.fit(table, val_size=VALIDATION)
    else:
        rows = job.cross_validation(table, n_windows=None, step_size=1, val_size=VALIDATION, test_size=TEST)
        if len(rows) != (TEST - HORIZON + 1) * HORIZON * CHANNELS:
            sys.exit(f"neuralforecast forecasts {len(rows)} values")
        names = [f"it-lo-{level}" for level in reversed(LEVELS)] + ["it-median"] + [f"it-hi-{level}" for level in LEVELS]
        is_quantile = loss == "quantile"
        forecast = rows["it-median" if is_quantile else "it"].to_numpy()
        found |= errors(rows["y"].to_numpy(), forecast, rows[names].to_numpy() if is_quantile else None)
    # Nobody measured the first epoch.
    return found | {"seconds": [None] + [end - begin for begin, end in zip(at, at[1:])]}


def by_transformers(a, seed, epochs):
    import copy

    import torch
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    s, device = SETTINGS["patchtst"], "cuda" if a.device == "cuda" else "cpu"
    torch.manual_seed(seed)
    model = PatchTSTForPrediction(PatchTSTConfig(
        num_input_channels=CHANNELS, context_length=s["context"], prediction_length=HORIZON, patch_length=16, patch_stride=8,
        d_model=16, num_attention_heads=4, num_hidden_layers=3, ffn_dim=128, norm_type="batchnorm", positional_dropout=0.3,
        path_dropout=0.3, ff_dropout=0.3, scaling="std", pooling_type=None, loss="mse")).to(device)
    values = torch.from_numpy(standardised(a.data)[0]).to(device)
    parts = [(0, TRAIN), (TRAIN - s["context"], TRAIN + VALIDATION), (TRAIN + VALIDATION - s["context"], len(values))]
    train, validation, test = (
        values[begin:end].unfold(0, s["context"] + HORIZON, 1).transpose(1, 2) for begin, end in parts)

    def forecasts(windows):
        model.eval()
        with torch.no_grad():
            each = [model(past_values=w[:, : s["context"]]).prediction_outputs for w in windows.split(256)]
        return torch.cat(each), windows[:, s["context"] :]

    optimizer = torch.optim.Adam(model.parameters(), lr=s["lr"], fused=device == "cuda")
    best, seconds = (float("inf"), None), []
    clock = time.process_time if a.processor else time.perf_counter
    for _ in range(epochs):
        begun = clock()
        model.train()
        for batch in torch.randperm(len(train), device=device)[: steps("patchtst") * s["batch"]].split(s["batch"]):
            window = train[batch]
            model(past_values=window[:, : s["context"]], future_values=window[:, s["context"] :]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        forecast, truth = forecasts(validation)
        loss = (forecast - truth).square().mean().item()
        if loss < best[0]:
            best = loss, copy.deepcopy(model.state_dict())
        seconds.append(clock() - begun)
    model.load_state_dict(best[1])
    forecast, truth = forecasts(test)
    found = errors(truth.cpu().numpy(), forecast.cpu().numpy())
    return found | {"seconds": seconds, "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)}


def run_here(a, job):
    """Trains one model in this process."""
    name, model, loss, seed, epochs, is_timed = job
    if name == "refrain":
        with tempfile.TemporaryDirectory() as folder:
            return by_refrain(a, model, loss, seed, epochs, is_timed, folder)
    if name in ("neuralforecast", REORDERED):
        return by_neuralforecast(a, name, model, loss, seed, epochs, is_timed)
    return by_transformers(a, seed, epochs)


def run(a, job):
    """Trains one model in a process of its own. None, with the reason on standard error, if that fails."""
    if job[0] == "refrain":
        try:
            return run_here(a, job)
        except (OSError, subprocess.CalledProcessError) as error:
            return print(f"{job}: {error}", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--data", a.data, "--device", a.device, "--here", json.dumps(job),
               *["--processor"] * a.processor]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder)
    if done.returncode:
        return print(f"{job}: {done.stderr.strip()[-600:]}", file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def figure(values):
    """The mean and, of several seeds, the deviation."""
    values = [value for value in values if value is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def is_installed(name):
    try:
        return name == "refrain" or metadata.version(name.removesuffix("-reordered")) is not None
    except metadata.PackageNotFoundError:
        return print(f"{name} is not installed", file=sys.stderr)


def line(*cells):
    print(f"| {' | '.join(cells)} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--data", type=lambda text: Path(text).absolute(), required=True, help="ETTh1.csv of the ETDataset")
    p.add_argument("--models", type=some_of(SETTINGS), default=list(SETTINGS))
    p.add_argument("--programs", type=some_of(PROGRAMS), default=list(PROGRAMS))
    p.add_argument("--losses", type=some_of(LOSSES), default=list(LOSSES))
    p.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    p.add_argument("--epochs", type=int, help="other than those of SETTINGS")
    p.add_argument("--timing", type=int, default=4, help="epochs to measure; 0 measures none")
    p.add_argument("--processor", action="store_true", help="measure seconds of the processor, not of the clock")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--refrain", type=program, default=ROOT / "target/release/refrain")
    p.add_argument("--out", type=Path, help="keep all figures in this file, by device, and do not measure again what it has")
    p.add_argument("--here", type=json.loads, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.here:
        # Libraries may print, too; the result is the last line.
        return print("\n" + json.dumps(run_here(a, a.here)))
    programs = [name for name in a.programs if is_installed(name)]
    machine(a.refrain, gpu=a.device == "cuda")
    print(", ".join(f"{name} {metadata.version(name)}" for name in programs if name not in ("refrain", REORDERED)))
    cases = [(name, model) for model in a.models for name in programs if any(can(name, model, loss) for loss in a.losses)]
    jobs = [(name, model, loss, seed, a.epochs or SETTINGS[model]["epochs"], False)
            for loss in a.losses for seed in a.seeds for name, model in cases if can(name, model, loss)]
    first = {case: next(loss for loss in a.losses if can(*case, loss)) for case in cases}
    timings = [(*case, first[case], 1, a.timing, True) for case in cases] if a.timing else []
    known = {}
    if a.out and a.out.exists():
        known = {tuple(key): result for key, result in map(json.loads, a.out.read_text().splitlines())}

    def figures(job):
        key = (f"{a.device}, processor" if a.processor else a.device, *job)
        if key not in known:
            known[key] = run(a, job)
            if a.out and known[key]:
                with a.out.open("a") as file:
                    print(json.dumps([key, known[key]]), file=file, flush=True)
        return known[key]

    timed = {job[:2]: figures(job) for job in timings}
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        results = dict(zip(jobs, pool.map(figures, jobs)))

    print(f"\n{datetime.date.today()}, {a.device}, seeds {', '.join(map(str, a.seeds))}\n")
    line("model", "program", "parameters", "MSE", "MAE", "CRPS", "seconds an epoch")
    line(*["---"] * 7)
    for name, model in cases:
        def every(loss, key):
            of = [r for (n, m, l, *_), r in results.items() if (n, m, l) == (name, model, loss) and r]
            return [r.get(key) for r in of]

        clock = timed.get((name, model))
        seconds = f"{statistics.median(clock['seconds'][1:]):.3f}" if clock else ""
        count = next(iter(every("mse", "parameters")), None)
        line(model, name, f"{count:,}" if count else "", figure(every("mse", "mse")), figure(every("mse", "mae")),
             figure(every("quantile", "crps")), seconds)
        if (name, model) == [case for case in cases if case[1] == model][-1]:
            mse, mae = SETTINGS[model]["paper"]
            line(model, "the paper", "", f"{mse:.3f}", f"{mae:.3f}", "", "")


if __name__ == "__main__":
    main()
