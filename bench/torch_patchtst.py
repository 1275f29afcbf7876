"""PatchTST with the options of `refrain train --model patchtst`, in PyTorch, for sweep.py.

A layer may normalise by batch or layer norm, before or after its branches; attention may add its scores to those of the next layer; windows
may be normalised by RevIN.
"""

import torch
import torch.nn.functional as F
from torch import nn


class BatchNorm(nn.BatchNorm1d):
    """Of each feature over rows and patches."""

    def forward(self, h):
        return super().forward(h.flatten(0, 1)).view_as(h)


class RevIn(nn.Module):
    """Each window of a channel by its own mean and deviation, which are constants for the gradient."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels, 1)), nn.Parameter(torch.zeros(channels, 1))

    def normalise(self, x):
        with torch.no_grad():
            mean = x.mean(-1, keepdim=True)
            std = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return (x - mean) / std * self.weight + self.bias, mean, std

    def denormalise(self, y, mean, std):
        return (y - self.bias) / (self.weight + 1e-10) * std + mean


class Layer(nn.Module):
    """An encoder layer."""

    def __init__(self, c):
        super().__init__()
        d, p = c["d_model"], c["dropout"]
        self.heads, self.pre, self.adds_scores = c["heads"], c["norm_position"] == "pre", c["residual_attention"]
        norm = BatchNorm if c["norm"] == "batch" else nn.LayerNorm
        self.norm1, self.norm2 = norm(d), norm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.ffn = nn.Sequential(nn.Linear(d, c["ffn"]), nn.GELU(), nn.Dropout(p), nn.Linear(c["ffn"], d), nn.Dropout(p))
        # Two dropouts in a row, as in the reference implementation, are one.
        self.drop = nn.Dropout(1 - (1 - p) ** 2)

    def attend(self, h, scores):
        q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        if self.adds_scores:
            own = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            scores = own if scores is None else own + scores
            a = scores.softmax(-1).to(v.dtype) @ v
        else:
            a = F.scaled_dot_product_attention(q, k, v)
        return self.drop(self.o(a.transpose(1, 2).flatten(2))), scores

    def forward(self, h, scores):
        if self.pre:
            a, scores = self.attend(self.norm1(h), scores)
            h = h + a
            return h + self.ffn(self.norm2(h)), scores
        a, scores = self.attend(h, scores)
        h = self.norm1(h + a)
        return self.norm2(h + self.ffn(h)), scores


class PatchTst(nn.Module):
    """Contexts `[B, C, context]` and truth `[B, C, horizon]` to the mean squared error."""

    def __init__(self, c):
        super().__init__()
        self.patch, self.stride = c["patch"], c["stride"]
        patches = (c["context"] - c["patch"]) // c["stride"] + 1
        self.revin = RevIn(c["channels"]) if c["revin"] else None
        self.embed = nn.Linear(c["patch"], c["d_model"])
        self.pos = nn.Parameter(0.02 * torch.randn(patches, c["d_model"]))
        self.drop = nn.Dropout(c["dropout"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.head = nn.Linear(patches * c["d_model"], c["horizon"])

    def forward(self, x, y):
        if self.revin is not None:
            x, mean, std = self.revin.normalise(x)
        h = self.drop(self.embed(x.flatten(0, 1).unfold(-1, self.patch, self.stride)) + self.pos)
        scores = None
        for layer in self.layers:
            h, scores = layer(h, scores)
        forecast = self.head(h.flatten(1)).float().view_as(y)
        if self.revin is not None:
            forecast = self.revin.denormalise(forecast, mean, std)
        return F.mse_loss(forecast, y)
