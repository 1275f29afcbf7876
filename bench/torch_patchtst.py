"""PatchTST with the options of `refrain train --model patchtst`, in PyTorch, and what other forecasters share with it.

A layer may normalise by batch or layer norm, before or after its branches; attention may add its scores to those of the next layer; the
channels of a window may attend to each other. Queries, keys and values come from one linear layer, and batch norm sees rows of features:
both are faster than three layers and a transposed view.
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

    def __init__(self, channels, affine=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels, 1)) if affine else None

    def normalise(self, x):
        with torch.no_grad():
            mean = x.mean(-1, keepdim=True)
            std = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = (x - mean) / std
        return (x if self.weight is None else x * self.weight + self.bias), mean, std

    def denormalise(self, y, mean, std):
        if self.weight is not None:
            y = (y - self.bias) / (self.weight + 1e-10)
        return y * std + mean

    def denormalise_scale(self, scale, std):
        return scale * std if self.weight is None else scale * std / (self.weight + 1e-10).abs()


class Layer(nn.Module):
    """An encoder layer. `drop` is the dropout of the attention's output."""

    def __init__(self, c, drop):
        super().__init__()
        d, p = c["d_model"], c["dropout"]
        self.heads, self.pre, self.adds_scores = c["heads"], c["norm_position"] == "pre", c["residual_attention"]
        self.channels, self.attention_dropout = c["channels"], c["attention_dropout"]
        norm = BatchNorm if c["norm"] == "batch" else nn.LayerNorm
        self.norm1, self.norm2 = norm(d), norm(d)
        self.norm_channels = norm(d) if c["channel_attention"] else None
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.Linear(d, c["ffn"]), nn.GELU(), nn.Dropout(p), nn.Linear(c["ffn"], d), nn.Dropout(p))
        self.drop = nn.Dropout(drop)

    def attend(self, h, scores):
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.adds_scores:
            own = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            scores = own if scores is None else own + scores
            a = F.dropout(scores.softmax(-1).to(v.dtype), self.attention_dropout, self.training) @ v
        else:
            a = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attention_dropout if self.training else 0.0)
        return self.drop(self.o(a.transpose(1, 2).flatten(2))), scores

    def add_attention(self, norm, h, scores):
        a, scores = self.attend(norm(h) if self.pre else h, scores)
        return (h + a if self.pre else norm(h + a)), scores

    def add_attention_across(self, h):
        """Among the channels, at each patch."""
        across = h.unflatten(0, (-1, self.channels)).transpose(1, 2)
        across, _ = self.add_attention(self.norm_channels, across.flatten(0, 1), None)
        return across.unflatten(0, (-1, h.shape[1])).transpose(1, 2).flatten(0, 1)

    def forward(self, h, scores=None):
        h, scores = self.add_attention(self.norm1, h, scores)
        if self.norm_channels is not None:
            h = self.add_attention_across(h)
        return (h + self.ffn(self.norm2(h)) if self.pre else self.norm2(h + self.ffn(h))), scores


class PatchTst(nn.Module):
    """Contexts `[B, C, context]` to `[B, C, outputs]`."""

    def __init__(self, c, outputs):
        super().__init__()
        self.patch, self.stride, self.padding = c["patch"], c["stride"], c["stride"] if c["end_padding"] else 0
        patches = (c["context"] + self.padding - c["patch"]) // c["stride"] + 1
        self.embed = nn.Linear(c["patch"], c["d_model"])
        self.pos = nn.Parameter(0.02 * torch.randn(patches, c["d_model"]))
        self.drop = nn.Dropout(c["dropout"])
        # Two dropouts in a row, as in the reference implementation, are one.
        drop = 1 - (1 - c["dropout"]) ** 2
        self.layers = nn.ModuleList(Layer(c, drop) for _ in range(c["layers"]))
        self.head = nn.Linear(patches * c["d_model"], outputs)

    def forward(self, x):
        rows = x.flatten(0, 1)
        if self.padding:
            rows = F.pad(rows, (0, self.padding), mode="replicate")
        h = self.drop(self.embed(rows.unfold(-1, self.patch, self.stride)) + self.pos)
        scores = None
        for layer in self.layers:
            h, scores = layer(h, scores)
        return self.head(h.flatten(1)).unflatten(0, x.shape[:2])
