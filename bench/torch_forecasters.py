"""The forecasters of `refrain train` with their losses, in PyTorch, for sweep.py and users.py."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch_patchtst import Layer, PatchTst, RevIn


class ChannelLinear(nn.Module):
    """`[B, C, inputs]` to `[B, C, outputs]` by a layer for all channels, or one for each."""

    def __init__(self, c, outputs):
        super().__init__()
        self.shared = None if c["individual"] else nn.Linear(c["context"], outputs)
        if c["individual"]:
            bound = c["context"] ** -0.5
            self.weight = nn.Parameter(torch.empty(c["channels"], c["context"], outputs).uniform_(-bound, bound))
            self.bias = nn.Parameter(torch.empty(c["channels"], 1, outputs).uniform_(-bound, bound))

    def forward(self, x):
        if self.shared is not None:
            return self.shared(x)
        return torch.baddbmm(self.bias, x.transpose(0, 1), self.weight).transpose(0, 1)


class NLinear(nn.Module):
    def __init__(self, c, outputs):
        super().__init__()
        self.linear = ChannelLinear(c, outputs)

    def forward(self, x):
        last = x[..., -1:]
        return self.linear(x - last) + last


class DLinear(nn.Module):
    def __init__(self, c, outputs):
        super().__init__()
        self.side = c["moving_average"] // 2
        self.average = nn.AvgPool1d(c["moving_average"], stride=1)
        self.trend, self.rest = ChannelLinear(c, outputs), ChannelLinear(c, outputs)

    def forward(self, x):
        trend = self.average(F.pad(x, (self.side, self.side), mode="replicate"))
        return self.trend(trend) + self.rest(x - trend)


class ITransformer(nn.Module):
    """Its tokens are the channels."""

    def __init__(self, c, outputs):
        super().__init__()
        layer = {**c, "norm": "layer", "norm_position": "post", "attention_dropout": c["dropout"], "residual_attention": False,
                 "channel_attention": False}
        self.embed, self.drop = nn.Linear(c["context"], c["d_model"]), nn.Dropout(c["dropout"])
        self.layers = nn.ModuleList(Layer(layer, c["dropout"]) for _ in range(c["layers"]))
        self.norm, self.head = nn.LayerNorm(c["d_model"]), nn.Linear(c["d_model"], outputs)

    def forward(self, x):
        h = self.drop(self.embed(x))
        for layer in self.layers:
            h, _ = layer(h)
        return self.head(self.norm(h))


class MixerBlock(nn.Module):
    """`[B, C, context]` to the same: along the rows, then along the channels."""

    def __init__(self, c):
        super().__init__()
        size = (c["channels"], c["context"])
        norm = lambda: nn.LayerNorm(size, eps=1e-3) if c["norm"] == "layer" else nn.BatchNorm1d(size[0] * size[1], eps=1e-3)
        drop = lambda: nn.Dropout(c["dropout"])
        self.flat = c["norm"] == "batch"
        self.norm1, self.norm2 = norm(), norm()
        self.rows = nn.Sequential(nn.Linear(size[1], size[1]), nn.ReLU(), drop())
        self.channels = nn.Sequential(nn.Linear(size[0], c["ffn"]), nn.ReLU(), drop(), nn.Linear(c["ffn"], size[0]), drop())

    def normal(self, norm, x):
        return norm(x.flatten(1)).view_as(x) if self.flat else norm(x)

    def forward(self, x):
        x = x + self.rows(self.normal(self.norm1, x))
        return x + self.channels(self.normal(self.norm2, x).transpose(1, 2)).transpose(1, 2)


class TsMixer(nn.Module):
    def __init__(self, c, outputs):
        super().__init__()
        self.blocks = nn.Sequential(*(MixerBlock(c) for _ in range(c["layers"])))
        self.head = nn.Linear(c["context"], outputs)

    def forward(self, x):
        return self.head(self.blocks(x))


MODELS = {"patchtst": PatchTst, "nlinear": NLinear, "dlinear": DLinear, "itransformer": ITransformer, "tsmixer": TsMixer}


def quantiles(levels):
    """Of intervals in percent, such as `80,90`: their bounds and the median."""
    return sorted({0.5, *(0.5 + side * float(level) / 200 for level in levels.split(",") for side in (-1, 1))})


class Forecaster(nn.Module):
    """Contexts `[B, C, context]` and truth `[B, C, horizon]` to the mean loss: that of squared errors, of quantiles, or of Student's t."""

    def __init__(self, c):
        super().__init__()
        self.loss, q = c["loss"], [0.5]
        if self.loss == "quantile":
            q = quantiles(c["levels"])
            self.register_buffer("q", torch.tensor(q)[:, None])
        values = 3 if self.loss == "student-t" else len(q)
        # iTransformer's RevIN has no affine map.
        self.revin = RevIn(c["channels"], c["model"] != "itransformer") if c.get("revin") else None
        self.model = MODELS[c["model"]](c, values * c["horizon"])

    def forward(self, x, y):
        revin = self.revin
        if revin is not None:
            x, mean, std = revin.normalise(x)
        forecast = self.model(x).float()
        if self.loss == "student-t":
            location, scale, above = forecast.chunk(3, -1)
            # The square-plus function makes both positive.
            scale, freedom = ((v + (v.square() + 4).sqrt()) / 2 for v in (scale, above))
            if revin is not None:
                location, scale = revin.denormalise(location, mean, std), revin.denormalise_scale(scale, std)
            return student_t(location, scale, freedom + 2, y)
        if revin is not None:
            forecast = revin.denormalise(forecast, mean, std)
        if self.loss == "quantile":
            error = forecast.unflatten(-1, (len(self.q), -1)) - y.unsqueeze(-2)
            return torch.maximum((1 - self.q) * error, -self.q * error).mean()
        return F.mse_loss(forecast, y)


def student_t(location, scale, freedom, y):
    """The mean of -ln p(y)."""
    power, ratio = (freedom + 1) / 2, ((y - location) / scale).square() / freedom
    constant = torch.lgamma(freedom / 2) - torch.lgamma(power) + (math.pi * freedom).log() / 2
    return (constant + scale.log() + power * ratio.log1p()).mean()
