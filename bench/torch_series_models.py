"""More models of series of `crates/refrain-nn/examples/models`, in PyTorch, for `torch_models.py`."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class GatedNorm(nn.Module):
    """The norm of a residual and of what a gate lets through."""

    def __init__(self, inputs, outputs, dropout=0.1):
        super().__init__()
        self.drop, self.gate, self.norm = nn.Dropout(dropout), nn.Linear(inputs, 2 * outputs), nn.LayerNorm(outputs)

    def forward(self, x, residual):
        return self.norm(residual + F.glu(self.gate(self.drop(x))))


class Grn(nn.Module):
    """A gated residual network."""

    def __init__(self, inputs, width, outputs, with_context=False):
        super().__init__()
        self.up, self.down = nn.Linear(inputs, width), nn.Linear(width, width)
        self.context = nn.Linear(width, width, bias=False) if with_context else None
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else nn.Identity()
        self.last = GatedNorm(width, outputs)

    def forward(self, x, context=None):
        y = self.up(x)
        if context is not None:
            y = y + self.context(context)
        return self.last(self.down(F.elu(y)), self.skip(x))


class Selection(nn.Module):
    """A sum of variables, each after a network of its own, with weights that depend on all of them."""

    def __init__(self, count, width):
        super().__init__()
        self.variables = nn.ModuleList(Grn(width, width, width) for _ in range(count))
        self.weights = Grn(count * width, width, count, with_context=True)

    def forward(self, variables, context):
        weights = self.weights(torch.cat(variables, -1), context).softmax(-1)
        processed = torch.stack([network(x) for network, x in zip(self.variables, variables)], 2)
        return (weights[..., None] * processed).sum(2)


class TemporalFusion(nn.Module):
    def __init__(self, device, batch=256, past=96, future=24, observed=8, known=4, categories=100, width=64, heads=4):
        super().__init__()
        self.past, self.heads = past, heads
        self.category, self.static = nn.Embedding(categories, width), Grn(width, width, width)
        self.contexts = nn.ModuleList(Grn(width, width, width) for _ in range(4))
        self.embed_observed, self.embed_known = (nn.ModuleList(nn.Linear(1, width) for _ in range(n)) for n in (observed, known))
        self.select_past, self.select_future = Selection(observed + known, width), Selection(known, width)
        self.encoder, self.decoder = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.after_lstm, self.enrich = GatedNorm(width, width), Grn(width, width, width, with_context=True)
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.value, self.out = nn.Linear(width, width // heads, bias=False), nn.Linear(width // heads, width, bias=False)
        self.after_attention, self.feed_forward = GatedNorm(width, width), Grn(width, width, width)
        self.last, self.head = GatedNorm(width, width, dropout=0.0), nn.Linear(width, 3)
        self.which = torch.randint(categories, (batch,), device=device)
        self.observed = torch.randn(batch, past, observed, device=device)
        self.known = torch.randn(batch, past + future, known, device=device)
        self.targets, self.levels = torch.randn(batch, future, device=device), torch.tensor([0.1, 0.5, 0.9], device=device)
        self.mask = torch.ones(future, past + future, dtype=torch.bool, device=device).tril(past)

    def forward(self):
        static = self.static(self.category(self.which))
        selection, h, c, enrichment = (network(static) for network in self.contexts)
        observed = [embed(x) for embed, x in zip(self.embed_observed, self.observed.split(1, -1))]
        known = [embed(x) for embed, x in zip(self.embed_known, self.known.split(1, -1))]
        past = self.select_past(observed + [x[:, : self.past] for x in known], selection[:, None])
        future = self.select_future([x[:, self.past :] for x in known], selection[:, None])
        encoded, state = self.encoder(past, (h[None], c[None]))
        decoded, _ = self.decoder(future, state)
        temporal = self.after_lstm(torch.cat((encoded, decoded), 1), torch.cat((past, future), 1))

        x = self.enrich(temporal, enrichment[:, None])
        ahead = x[:, self.past :]
        query, key = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.query(ahead), self.key(x)))
        value = self.value(x)[:, None].expand_as(key)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask).mean(1)
        y = self.feed_forward(self.after_attention(self.out(y), ahead))
        y = self.head(self.last(y, temporal[:, self.past :]))
        error = self.targets[..., None] - y.float()
        return torch.maximum(self.levels * error, (self.levels - 1) * error).mean()


class ProbAttention(nn.Module):
    """Attention of those queries that stand out: whose largest product with some of the keys is far above the mean of these."""

    def __init__(self, device, length, masked, width, heads, factor=5):
        super().__init__()
        self.heads, self.masked = heads, masked
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.count = min(length, factor * math.ceil(math.log(length)))
        self.sample = torch.randint(length, (length * self.count,), device=device)
        self.steps = torch.arange(length, device=device)

    def forward(self, x):
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        with torch.no_grad():
            sampled = key.index_select(2, self.sample).unflatten(2, (-1, self.count))
            products = (query[:, :, :, None] @ sampled.transpose(-2, -1)).squeeze(3)
            top = (products.amax(-1) - products.mean(-1)).topk(self.count).indices[..., None]
        places = top.expand(-1, -1, -1, value.shape[-1])
        mask = self.steps <= top if self.masked else None
        chosen = F.scaled_dot_product_attention(query.gather(2, places), key, value, attn_mask=mask)
        others = value.cumsum(2) if self.masked else value.mean(2, keepdim=True).expand_as(value)
        y = others.scatter(2, places, chosen.to(others.dtype))
        return self.out(y.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.q, self.kv, self.o = heads, nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, memory):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v, dropout_p=0.05).transpose(1, 2).flatten(2))


class InformerLayer(nn.Module):
    """A layer of the encoder, or one of the decoder, which also attends to the encoder's steps."""

    def __init__(self, device, length, decodes, width, heads, hidden):
        super().__init__()
        self.attention = ProbAttention(device, length, decodes, width, heads)
        self.cross = CrossAttention(width, heads) if decodes else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decodes else 2))
        self.up, self.down, self.drop = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.Dropout(0.05)

    def forward(self, x, memory=None):
        x = self.norms[0](x + self.drop(self.attention(x)))
        if memory is not None:
            x = self.norms[1](x + self.drop(self.cross(x, memory)))
        return self.norms[-1](x + self.drop(self.down(self.drop(F.gelu(self.up(x))))))


class InformerEmbedding(nn.Module):
    """Of the values, the place and the time (its hour, day and so on) of each step."""

    def __init__(self, device, length, channels, marks, width):
        super().__init__()
        self.values = nn.Conv1d(channels, width, 3, padding=1, padding_mode="circular")
        self.times, self.drop = nn.Linear(marks, width), nn.Dropout(0.05)
        angles = torch.outer(torch.arange(length), 10000 ** -(torch.arange(0, width, 2) / width))
        self.places = torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(device)

    def forward(self, x, times):
        return self.drop(self.values(x.transpose(1, 2)).transpose(1, 2) + self.times(times) + self.places)


class Distil(nn.Module):
    """Half as many steps."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1, padding_mode="circular")
        self.norm, self.pool = nn.BatchNorm1d(width), nn.MaxPool1d(3, stride=2, padding=1)

    def forward(self, x):
        return self.pool(F.elu(self.norm(self.conv(x.transpose(1, 2))))).transpose(1, 2)


class Informer(nn.Module):
    def __init__(self, device, batch=32, length=96, label=48, horizon=24, channels=7, marks=4, width=128, heads=8, hidden=256):
        super().__init__()
        self.label, self.horizon = label, horizon
        sizes = (width, heads, hidden)
        self.embeddings = nn.ModuleList(InformerEmbedding(device, n, channels, marks, width) for n in (length, label + horizon))
        self.encoder = nn.Sequential(
            InformerLayer(device, length, False, *sizes),
            Distil(width),
            InformerLayer(device, length // 2, False, *sizes),
            nn.LayerNorm(width),
        )
        self.decoder, self.norm = InformerLayer(device, label + horizon, True, *sizes), nn.LayerNorm(width)
        self.head = nn.Linear(width, channels)
        self.series, self.targets = (torch.randn(batch, n, channels, device=device) for n in (length, horizon))
        self.times = torch.randn(batch, length + horizon, marks, device=device)

    def forward(self):
        length = self.series.shape[1]
        memory = self.encoder(self.embeddings[0](self.series, self.times[:, :length]))
        # The decoder gets the last steps of the input, then zeros.
        begin = F.pad(self.series[:, -self.label :], (0, 0, 0, self.horizon))
        x = self.decoder(self.embeddings[1](begin, self.times[:, length - self.label :]), memory)
        return F.mse_loss(self.head(self.norm(x))[:, -self.horizon :], self.targets)


def trend_of(x):
    """Means of 25 steps of series [.., time], with the ends repeated."""
    return F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, stride=1)


def decomposed(x):
    """The seasonal part of series `[.., time]`, and their trend: means of 25 steps, with the ends repeated."""
    trend = trend_of(x)
    return x - trend, trend


def mlp(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


class Mixing(nn.Module):
    """Adds seasons to those of the next coarser scale, and trends to those of the next finer one."""

    def __init__(self, lengths, width):
        super().__init__()
        steps = list(zip(lengths, lengths[1:]))
        self.seasons = nn.ModuleList(mlp(fine, coarse, coarse) for fine, coarse in steps)
        self.trends = nn.ModuleList(mlp(coarse, fine, fine) for fine, coarse in steps)
        self.ffn = mlp(width, 2 * width, width)

    def forward(self, scales):
        seasons, trends = map(list, zip(*(decomposed(x) for x in scales)))
        for i, mix in enumerate(self.seasons):
            seasons[i + 1] = seasons[i + 1] + mix(seasons[i])
        for i, mix in reversed(list(enumerate(self.trends))):
            trends[i] = trends[i] + mix(trends[i + 1])
        return [x + self.ffn((s + t).transpose(1, 2)).transpose(1, 2) for x, s, t in zip(scales, seasons, trends)]


class TimeMixer(nn.Module):
    def __init__(self, device, batch=128, channels=7, length=96, horizon=96, width=16):
        super().__init__()
        lengths = [length >> i for i in range(4)]
        self.embedding, self.drop = nn.Conv1d(1, width, 3, padding=1, padding_mode="circular", bias=False), nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Mixing(lengths, width) for _ in range(2)))
        self.predictors, self.head = nn.ModuleList(nn.Linear(n, horizon) for n in lengths), nn.Linear(width, 1)
        self.series, self.targets = (torch.randn(batch, n, channels, device=device) for n in (length, horizon))

    def forward(self):
        # [batch * channels, 1, time]
        scales = [self.series.transpose(1, 2).flatten(0, 1)[:, None]]
        for _ in range(3):
            scales.append(F.avg_pool1d(scales[-1], 2))
        means = [x.mean(2, keepdim=True) for x in scales]
        deviations = [(x.var(2, keepdim=True, correction=0) + 1e-5).sqrt() for x in scales]
        scales = [self.drop(self.embedding((x - m) / d)) for x, m, d in zip(scales, means, deviations)]
        predicted = [predict(x) for predict, x in zip(self.predictors, self.blocks(scales))]
        y = sum(self.head(x.transpose(1, 2)) for x in predicted) * deviations[0] + means[0]
        return F.mse_loss(y.unflatten(0, (len(self.series), -1)).squeeze(3).transpose(1, 2), self.targets)


class AttentionDecoder(nn.Module):
    def __init__(self, device, batch=128, length=96, horizon=24, features=8, hidden=128):
        super().__init__()
        self.encoder, self.cell = nn.GRU(features, hidden, batch_first=True), nn.GRUCell(1 + hidden, hidden)
        self.begin, self.head = nn.Linear(hidden, hidden), nn.Linear(1 + 2 * hidden, 1)
        self.query, self.key = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.score = nn.Linear(hidden, 1, bias=False)
        self.series = torch.randn(batch, length, features, device=device)
        values = torch.randn(batch, horizon + 1, 1, device=device)
        self.before, self.next = values[:, :-1].contiguous(), values[:, 1:].contiguous()

    def forward(self):
        memory, last = self.encoder(self.series)
        keys, state = self.key(memory), torch.tanh(self.begin(last[0]))
        states, contexts = [], []
        for before in self.before.unbind(1):
            weights = self.score(torch.tanh(self.query(state)[:, None] + keys)).softmax(1)
            context = (weights.transpose(1, 2) @ memory)[:, 0]
            state = self.cell(torch.cat((before, context), 1), state)
            states.append(state)
            contexts.append(context)
        y = torch.cat((self.before, torch.stack(states, 1), torch.stack(contexts, 1)), 2)
        return F.mse_loss(self.head(y), self.next)


# Name to what makes the model on a device; it computes the loss of its batch.
MODELS = {
    "temporal fusion": TemporalFusion,
    "informer": Informer,
    "timemixer": TimeMixer,
    "attention decoder": AttentionDecoder,
}
