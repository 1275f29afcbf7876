"""Makes the references of the losses of forecasts, in PyTorch float64.

    pip install torch numpy safetensors && python losses.py

losses.safetensors holds, all F64 of shape [4, 3, 5]: `forecast`, `truth` and `observed` (1 where a value was observed, 0 where
it was filled), and for each loss (mse, mae, huber_0.5, huber_1, quantile_80_90) the loss over all values `<loss>/plain` and over those
observed `<loss>/observed`, both [], and their gradients by the forecast, `<loss>/plain_gradient` and
`<loss>/observed_gradient`. The losses are F.mse_loss, F.l1_loss and F.huber_loss with that delta. `forecast_of_quantiles`
[4, 3, 25] holds the forecasts of five quantiles, one after another; their loss is the mean of max(q (y - x), (q - 1) (y - x)).
`forecast_of_student_t` [4, 3, 15] holds the values a, b and c, one after another; the loss student_t is the mean of
-torch.distributions.StudentT(2 + |c - a| / |b - a|, a, |b - a|).log_prob(y).
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

SHAPE = (4, 3, 5)
QUANTILES = (0.05, 0.1, 0.5, 0.9, 0.95)
LOSSES = {
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber_0.5": lambda x, y: F.huber_loss(x, y, delta=0.5),
    "huber_1": lambda x, y: F.huber_loss(x, y, delta=1.0),
}


def main():
    generator = torch.Generator().manual_seed(20)
    forecast, truth = (torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(2))
    observed = (torch.rand(SHAPE, generator=generator, dtype=torch.float64) < 0.7).double()
    tensors = {"forecast": forecast, "truth": truth, "observed": observed}
    for name, loss in LOSSES.items():
        for part, mask in (("plain", torch.ones(SHAPE, dtype=torch.bool)), ("observed", observed.bool())):
            x = forecast.clone().requires_grad_()
            value = loss(x[mask], truth[mask])
            value.backward()
            tensors[f"{name}/{part}"] = value.detach()
            tensors[f"{name}/{part}_gradient"] = x.grad
    quantiles = torch.tensor(QUANTILES, dtype=torch.float64)[:, None]
    several = torch.randn((4, 3, 25), generator=generator, dtype=torch.float64)
    tensors["forecast_of_quantiles"] = several
    for part, mask in (("plain", torch.ones(SHAPE)), ("observed", observed)):
        x = several.clone().requires_grad_()
        short = truth[:, :, None] - x.unflatten(-1, (5, 5))
        losses = torch.maximum(quantiles * short, (quantiles - 1) * short)
        value = losses[(mask[:, :, None] > 0).expand_as(losses)].mean()
        value.backward()
        tensors[f"quantile_80_90/{part}"] = value.detach()
        tensors[f"quantile_80_90/{part}_gradient"] = x.grad
    several = torch.randn((4, 3, 15), generator=generator, dtype=torch.float64)
    a, b, _ = several.unflatten(-1, (3, 5)).unbind(-2)
    b += 0.2 * (b - a).sign()  # a small scale has a gradient that is large
    tensors["forecast_of_student_t"] = several
    for part, mask in (("plain", torch.ones(SHAPE)), ("observed", observed)):
        x = several.clone().requires_grad_()
        a, b, c = x.unflatten(-1, (3, 5)).unbind(-2)
        scale = (b - a).abs()
        distribution = torch.distributions.StudentT(2 + (c - a).abs() / scale, a, scale)
        value = -distribution.log_prob(truth)[mask > 0].mean()
        value.backward()
        tensors[f"student_t/{part}"] = value.detach()
        tensors[f"student_t/{part}_gradient"] = x.grad
    path = Path(__file__).with_name("losses.safetensors")
    save_file(tensors, path)
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
