"""Makes a tiny checkpoint of Hugging Face's PatchTST with random weights, and its forecast by transformers.

    pip install torch transformers && python make.py

`checkpoint/` is what `save_pretrained` writes. `forecast.json` has the forecast [H, C] of the last rows of the series that
`series` of `tests/common/mod.rs` makes, in its units.
"""

import json
import math
from pathlib import Path

import torch
from transformers import PatchTSTConfig, PatchTSTForPrediction

ROWS, CONTEXT, HORIZON = 300, 24, 6


def series(rows):
    def noise(i):
        return ((i * 7919 + i * i * 31) % 1009) / 1009 - 0.5

    def row(at):
        angle = at * math.tau / 24
        return [math.sin(angle) + 0.1 * noise(at), 20 + 5 * math.cos(angle) + noise(at + 7)]

    return [row(at) for at in range(rows)]


def main():
    folder = Path(__file__).parent
    config = PatchTSTConfig(
        num_input_channels=2,
        context_length=CONTEXT,
        prediction_length=HORIZON,
        patch_length=5,
        patch_stride=3,
        d_model=8,
        num_attention_heads=2,
        num_hidden_layers=2,
        ffn_dim=12,
        attention_dropout=0.1,
        path_dropout=0.1,
        ff_dropout=0.1,
        head_dropout=0.1,
    )
    torch.manual_seed(1)
    model = PatchTSTForPrediction(config)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(0.5 + torch.rand(value.shape))
            elif value.is_floating_point() and not name.endswith("position_enc"):
                value.add_(0.2 * torch.randn(value.shape))
    model.save_pretrained(folder / "checkpoint")
    context = torch.tensor([series(ROWS)[-CONTEXT:]])
    with torch.no_grad():
        forecast = model.eval()(past_values=context).prediction_outputs[0]
    (folder / "forecast.json").write_text(json.dumps(forecast.tolist()) + "\n")


if __name__ == "__main__":
    main()
