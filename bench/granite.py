"""Evaluates granite-timeseries-patchtst on ETTh1 by refrain and by transformers. Its card gives a mean squared error of 0.388.

    pip install huggingface_hub transformers torch pandas
    python granite.py --etth1 ETTh1.csv

It downloads the checkpoint (a few MB), or takes --checkpoint DIR, and runs `refrain import` and `refrain evaluate` (--refrain is
the program). The test part is the usual one (months 17 to 20), standardised by the training part, every window, all horizons
and channels. Both figures must agree to 1e-4; for the published checkpoint they should be 0.388.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = "ibm-granite/granite-timeseries-patchtst"
PUBLISHED = 0.388
MONTH = 30 * 24


def by_refrain(program, checkpoint, etth1, folder):
    run = folder / "run"
    subprocess.run([program, "import", checkpoint, "--data", etth1, "--split", "ett", "--out", run], check=True)
    done = subprocess.run([program, "evaluate", "--model", run, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)["test_mse"]


def by_transformers(checkpoint, etth1):
    import pandas
    import torch
    from transformers import PatchTSTForPrediction

    model = PatchTSTForPrediction.from_pretrained(checkpoint).eval()
    context, horizon = model.config.context_length, model.config.prediction_length
    values = torch.tensor(pandas.read_csv(etth1).iloc[:, 1:].to_numpy(), dtype=torch.float64)
    train = values[: 12 * MONTH]
    values = ((values - train.mean(0)) / train.std(0, unbiased=False)).float()
    rows = values[16 * MONTH - context : 20 * MONTH]
    windows = rows.unfold(0, context + horizon, 1).transpose(1, 2)
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in windows.split(64):
            forecast = model(past_values=batch[:, :context]).prediction_outputs
            total += (forecast - batch[:, context:]).double().square().sum().item()
            count += forecast.numel()
    return total / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--etth1", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--refrain", default="refrain")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        checkpoint = args.checkpoint
        if checkpoint is None:
            from huggingface_hub import snapshot_download

            files = ["config.json", "model.safetensors"]
            checkpoint = snapshot_download(REPOSITORY, local_dir=folder / "checkpoint", allow_patterns=files)
        ours = by_refrain(args.refrain, checkpoint, args.etth1, folder)
        theirs = by_transformers(checkpoint, args.etth1)
    published = "" if args.checkpoint else f", published {PUBLISHED}"
    print(f"mean squared error: refrain {ours:.4f}, transformers {theirs:.4f}{published}")
    assert abs(ours - theirs) < 1e-4, "refrain and transformers disagree"
    if args.checkpoint is None:
        assert abs(ours - PUBLISHED) < 0.01, "this is not the published figure"


if __name__ == "__main__":
    main()
