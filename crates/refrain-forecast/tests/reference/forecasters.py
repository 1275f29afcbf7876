"""Makes the references of forecasters, in PyTorch float64: the forecast of given weights, and gradients.

    pip install torch numpy safetensors && python forecasters.py

forecasters.safetensors holds, all F64, for each case `<case>/x` [B, C, L], `<case>/forecast` [B, C, H], and for each parameter
`<case>/weight/<name>` and `<case>/gradient/<name>`, the gradient of the mean of the squared forecast. The cases are

    dlinear, dlinear_individual    DLinear (Zeng et al., AAAI 2023) with a moving average of 7 rows: C 3, L 12, H 5
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

BATCH, CHANNELS, CONTEXT, HORIZON = 4, 3, 12, 5
KERNEL = 7


def dlinear(x, w, individual):
    # As in the paper: the ends are repeated, then an average pooling.
    ends = (KERNEL - 1) // 2
    padded = torch.cat([x[..., :1].repeat(1, 1, ends), x, x[..., -1:].repeat(1, 1, ends)], dim=-1)
    trend = F.avg_pool1d(padded, kernel_size=KERNEL, stride=1)

    def linear(h, name):
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        if individual:
            return torch.einsum("bcl,clh->bch", h, weight) + bias[:, 0]
        return F.linear(h, weight, bias)

    return linear(trend, "trend") + linear(x - trend, "rest")


def dlinear_shapes(individual):
    if individual:
        one = {"weight": (CHANNELS, CONTEXT, HORIZON), "bias": (CHANNELS, 1, HORIZON)}
    else:
        one = {"weight": (HORIZON, CONTEXT), "bias": (HORIZON,)}
    return {f"{part}.{name}": shape for part in ("trend", "rest") for name, shape in one.items()}


CASES = {
    "dlinear": (dlinear_shapes(False), lambda x, w: dlinear(x, w, False)),
    "dlinear_individual": (dlinear_shapes(True), lambda x, w: dlinear(x, w, True)),
}


def main():
    generator = torch.Generator().manual_seed(7)

    def random(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors = {}
    for case, (shapes, forward) in CASES.items():
        x = random((BATCH, CHANNELS, CONTEXT))
        weights = {name: (0.3 * random(shape)).requires_grad_() for name, shape in shapes.items()}
        forecast = forward(x, weights)
        forecast.square().mean().backward()
        tensors[f"{case}/x"], tensors[f"{case}/forecast"] = x, forecast.detach().contiguous().contiguous()
        for name, weight in weights.items():
            tensors[f"{case}/weight/{name}"] = weight.detach()
            tensors[f"{case}/gradient/{name}"] = weight.grad.contiguous()
    path = Path(__file__).with_name("forecasters.safetensors")
    save_file(tensors, path)
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
