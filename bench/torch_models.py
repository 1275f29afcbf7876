"""The models of `crates/refrain-nn/examples/models`, with the same sizes, in PyTorch, for `bench/models.py`."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from torch_series_models import MODELS as SERIES, trend_of
from torch_vision_models import MODELS as VISION


class Encoder(nn.Module):
    """A pre-norm layer with heads of 64."""

    def __init__(self, width, causal, dropout):
        super().__init__()
        self.heads, self.causal, self.drop = width // 64, causal, nn.Dropout(dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop(self.o(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(self.drop(F.gelu(self.up(self.norm2(x))))))


class Gpt(nn.Module):
    def __init__(self, device, vocabulary, context, width, layers, batch):
        super().__init__()
        self.tokens, self.places, self.drop = nn.Embedding(vocabulary, width), nn.Embedding(context, width), nn.Dropout(0.1)
        self.layers = nn.Sequential(*(Encoder(width, True, 0.1) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        text = torch.randint(vocabulary, (batch, context + 1), device=device)
        self.input, self.next = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        self.positions = torch.arange(context, device=device)

    def forward(self):
        x = self.drop(self.tokens(self.input) + self.places(self.positions))
        return F.cross_entropy(self.head(self.norm(self.layers(x))).flatten(0, 1), self.next.flatten())


def turned(x, cos, sin):
    """Queries or keys with rotary positions."""
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


def angles(context, device):
    angles = torch.outer(torch.arange(context), 10000 ** -(torch.arange(0, 64, 2) / 64)).repeat(1, 2).to(device)
    return angles.cos(), angles.sin()


class RotaryBlock(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        # The attention of refrain has biases.
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, hidden), (width, hidden), (hidden, width)))

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class RotaryText(nn.Module):
    """A language model of blocks that take the cosines and sines of positions."""

    def __init__(self, device, blocks, vocabulary, context, width, batch):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
        self.cos, self.sin = angles(context, device)
        text = torch.randint(vocabulary, (batch, context + 1), device=device)
        self.input, self.next = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def forward(self):
        x = self.tokens(self.input)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), self.next.flatten())


class VisionTransformer(nn.Module):
    def __init__(self, device, batch=128, width=192, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token, self.places = nn.Parameter(0.02 * torch.randn(1, 1, width)), nn.Parameter(0.02 * torch.randn(65, width))
        self.layers = nn.Sequential(*(Encoder(width, False, 0.0) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.images = torch.randn(batch, 3, 32, 32, device=device)
        self.labels = torch.randint(classes, (batch,), device=device)

    def forward(self):
        x = self.patches(self.images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), 1, -1).to(x.dtype), x), 1) + self.places
        return F.cross_entropy(self.head(self.norm(self.layers(x))[:, 0]), self.labels)


def conv_norm(inputs, outputs, kernel, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first, self.second = conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, 3, 1)
        self.shortcut = conv_norm(inputs, outputs, 1, 2) if stride == 2 else nn.Identity()

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, device, batch=128, classes=10):
        super().__init__()
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        self.layers = nn.Sequential(conv_norm(3, 64, 3, 1), nn.ReLU(), *(Block(a, b) for a, b in zip(widths, widths[1:])))
        self.head = nn.Linear(512, classes)
        self.images = torch.randn(batch, 3, 32, 32, device=device)
        self.labels = torch.randint(classes, (batch,), device=device)

    def forward(self):
        return F.cross_entropy(self.head(self.layers(self.images).mean((2, 3))), self.labels)


class Autoencoder(nn.Module):
    def __init__(self, device):
        super().__init__()
        sizes, layers = [3, 32, 64, 128], []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Conv2d(a, b, 4, 2, 1), nn.ReLU()]
        for a, b in zip(sizes[::-1], sizes[-2::-1]):
            layers += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.images = torch.randn(64, 3, 64, 64, device=device)

    def forward(self):
        return F.mse_loss(self.layers(self.images), self.images)


class TemporalConvolutions(nn.Module):
    def __init__(self, device, batch=64, inputs=16, channels=64, length=256):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(channels if i else inputs, channels, 3, dilation=2**i) for i in range(6))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(channels, 1)
        self.series, self.targets = torch.randn(batch, inputs, length, device=device), torch.randn(batch, 1, device=device)

    def forward(self):
        x = self.series
        for i, conv in enumerate(self.convs):
            y = self.drop(torch.relu(conv(F.pad(x, (2 * 2**i, 0)))))
            x = x + y if i else y
        return F.mse_loss(self.head(x[:, :, -1]), self.targets)


class Recurrent(nn.Module):
    def __init__(self, device, kind, batch=128, length=96, horizon=24):
        super().__init__()
        self.layers, self.head = kind(32, 128, num_layers=2, batch_first=True), nn.Linear(128, horizon)
        self.series, self.targets = torch.randn(batch, length, 32, device=device), torch.randn(batch, horizon, device=device)

    def forward(self):
        return F.mse_loss(self.head(self.layers(self.series)[0][:, -1]), self.targets)


class Mlp(nn.Module):
    def __init__(self, device, batch=1024, classes=10):
        super().__init__()
        layers, sizes = [], [100, 512, 512, 512]
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.1)]
        self.layers = nn.Sequential(*layers, nn.Linear(512, classes))
        self.table, self.labels = torch.randn(batch, 100, device=device), torch.randint(classes, (batch,), device=device)

    def forward(self):
        return F.cross_entropy(self.layers(self.table), self.labels)


class TwoTowers(nn.Module):
    def __init__(self, device, batch=4096, width=64):
        super().__init__()
        self.tables, self.layers, self.ids = nn.ModuleList(), nn.ModuleList(), []
        for count in (100_000, 20_000):
            self.tables.append(nn.Embedding(count, width))
            self.layers.append(nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, width)))
            self.ids.append(torch.randint(count, (batch,), device=device))
        self.ratings = torch.randn(batch, device=device)

    def forward(self):
        a, b = (layers(table(ids)) for table, layers, ids in zip(self.tables, self.layers, self.ids))
        return F.mse_loss((a * b).sum(-1), self.ratings)


class EncoderWith(Encoder):
    """The same with a mask of the tokens."""

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.drop(self.o(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(self.drop(F.gelu(self.up(self.norm2(x))))))


class DecoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads, self.drop = width // 64, nn.Dropout(0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q, self.kv, self.cross_o = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, memory, mask):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.o(y.transpose(1, 2).flatten(2)))
        q = self.q(self.norms[1](x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.drop(self.cross_o(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(self.drop(torch.relu(self.up(self.norms[2](x))))))


def padding(device, batch, length):
    """Which tokens belong to each sequence, and not to what fills it up."""
    lengths = torch.randint(length // 2, length + 1, (batch, 1), device=device)
    return torch.arange(length, device=device) < lengths


class Translation(nn.Module):
    def __init__(self, device, vocabulary=8000, length=64, width=256, batch=64):
        super().__init__()
        self.source, self.target, self.places = (nn.Embedding(n, width) for n in (vocabulary, vocabulary, length))
        self.drop = nn.Dropout(0.1)
        self.encoders = nn.ModuleList(EncoderWith(width, False, 0.1) for _ in range(3))
        self.decoders = nn.ModuleList(DecoderLayer(width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.sentences = torch.randint(vocabulary, (batch, length), device=device)
        self.mask = padding(device, batch, length)[:, None, None]
        text = torch.randint(vocabulary, (batch, length + 1), device=device)
        self.input, self.next = text[:, :-1].contiguous(), text[:, 1:].masked_fill(~padding(device, batch, length), -1)
        self.positions = torch.arange(length, device=device)

    def forward(self):
        places = self.places(self.positions)
        memory = self.drop(self.source(self.sentences) + places)
        for layer in self.encoders:
            memory = layer(memory, self.mask)
        memory = self.norms[0](memory)
        x = self.drop(self.target(self.input) + places)
        for layer in self.decoders:
            x = layer(x, memory, self.mask)
        logits = self.head(self.norms[1](x)).flatten(0, 1)
        return F.cross_entropy(logits, self.next.flatten(), label_smoothing=0.1, ignore_index=-1)


class PostNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads, self.drop = width // 64, nn.Dropout(0.1)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)
        x = self.norm1(x + self.drop(self.o(y.transpose(1, 2).flatten(2))))
        return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))


class MaskedWords(nn.Module):
    def __init__(self, device, vocabulary=30522, length=128, width=256, batch=32, guessed=18):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.ModuleList(PostNorm(width) for _ in range(4))
        self.transform, self.last_norm, self.head = nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.text = torch.randint(vocabulary, (batch, length), device=device)
        self.mask = padding(device, batch, length)[:, None, None]
        self.which = torch.randint(batch * length, (batch * guessed,), device=device)
        self.words = torch.randint(vocabulary, (batch * guessed,), device=device)
        self.positions = torch.arange(length, device=device)

    def forward(self):
        x = self.drop(self.norm(self.tokens(self.text) + self.places(self.positions)))
        for layer in self.layers:
            x = layer(x, self.mask)
        y = self.last_norm(F.gelu(self.transform(x.flatten(0, 1).index_select(0, self.which))))
        return F.cross_entropy(self.head(y), self.words)


class TimedBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.time = nn.Linear(256, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, device, batch=64, channels=(64, 128, 256)):
        super().__init__()
        self.times = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU())
        self.stem = nn.Conv2d(3, channels[0], 3, 1, 1)
        self.down = nn.ModuleList(TimedBlock(channels[max(i - 1, 0)], c) for i, c in enumerate(channels))
        self.smaller = nn.ModuleList(nn.Conv2d(c, c, 3, 2, 1) for c in channels[:2])
        self.middle = TimedBlock(channels[2], channels[2])
        pairs = ((channels[2], channels[1]), (channels[1], channels[0]))
        self.larger = nn.ModuleList(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, 1, 1)) for a, b in pairs)
        self.up = nn.ModuleList(TimedBlock(2 * b, b) for _, b in pairs)
        self.last = nn.Sequential(nn.GroupNorm(8, channels[0]), nn.SiLU(), nn.Conv2d(channels[0], 3, 3, 1, 1))
        self.images, self.noise = (torch.randn(batch, 3, 32, 32, device=device) for _ in range(2))
        self.waves = torch.randn(batch, 64, device=device)

    def forward(self):
        time, x, kept = self.times(self.waves), self.stem(self.images + self.noise), []
        for i, block in enumerate(self.down):
            x = block(x, time)
            if i < 2:
                kept.append(x)
                x = self.smaller[i](x)
        x = self.middle(x, time)
        for larger, block in zip(self.larger, self.up):
            x = block(torch.cat((kept.pop(), larger(x)), 1), time)
        return F.mse_loss(self.last(x), self.noise)


class ConvNextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 7, 1, 3, groups=width), nn.LayerNorm(width, 1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + (self.down(F.gelu(self.up(y))) * self.scale).permute(0, 3, 1, 2)


class NormOfPixels(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self, device, batch=128, widths=(96, 192, 384), classes=10):
        super().__init__()
        layers = []
        for before, width in zip((3, *widths), widths):
            smaller = nn.Conv2d(before, width, 2, 2)
            layers += [smaller, NormOfPixels(width, 1e-6)] if before == 3 else [NormOfPixels(before, 1e-6), smaller]
            layers += [ConvNextBlock(width), ConvNextBlock(width)]
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(widths[2], 1e-6), nn.Linear(widths[2], classes)
        self.images = torch.randn(batch, 3, 32, 32, device=device)
        self.labels = torch.randint(classes, (batch,), device=device)

    def forward(self):
        return F.cross_entropy(self.head(self.norm(self.layers(self.images).mean((2, 3)))), self.labels)


def bounded(inputs, outputs, kernel, stride=1, groups=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    def __init__(self, before, channels, stride):
        super().__init__()
        wide = 6 * before
        self.residual = stride == 1 and before == channels
        down = nn.Sequential(nn.Conv2d(wide, channels, 1), nn.BatchNorm2d(channels))
        self.layers = nn.Sequential(bounded(before, wide, 1), bounded(wide, wide, 3, stride, wide), down)

    def forward(self, x):
        y = self.layers(x)
        return x + y if self.residual else y


class MobileNet(nn.Module):
    def __init__(self, device, batch=128, classes=10):
        super().__init__()
        blocks = ((16, 1), (24, 1), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1), (96, 1))
        sources = (32, *(channels for channels, _ in blocks))
        inverted = (InvertedResidual(before, *block) for before, block in zip(sources, blocks))
        self.layers = nn.Sequential(bounded(3, 32, 3), *inverted, bounded(96, 640, 1))
        self.head = nn.Linear(640, classes)
        self.images = torch.randn(batch, 3, 32, 32, device=device)
        self.labels = torch.randint(classes, (batch,), device=device)

    def forward(self):
        return F.cross_entropy(self.head(self.layers(self.images).mean((2, 3))), self.labels)


class WaveNet(nn.Module):
    def __init__(self, device, batch=16, channels=64, length=1024, levels=256):
        super().__init__()
        self.sounds = nn.Embedding(levels, channels)
        self.gates = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(10))
        self.residuals = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(10))
        self.skips = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 1) for _ in range(10))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(2 * channels, 2 * channels, 1), nn.ReLU(), nn.Conv1d(2 * channels, levels, 1))
        sound = torch.randint(levels, (batch, length + 1), device=device)
        self.input, self.next = sound[:, :-1].contiguous(), sound[:, 1:].contiguous()

    def forward(self):
        x, sum_of = self.sounds(self.input).transpose(1, 2), 0
        for i, (gate, residual, skip) in enumerate(zip(self.gates, self.residuals, self.skips)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            x = x + residual(y)
            sum_of = sum_of + skip(y)
        return F.cross_entropy(self.last(sum_of), self.next)


class NBeatsBlock(nn.Module):
    def __init__(self, context, horizon, hidden):
        super().__init__()
        layers = []
        for j in range(4):
            layers += [nn.Linear(hidden if j else context, hidden), nn.ReLU()]
        self.layers, self.back, self.ahead = nn.Sequential(*layers), nn.Linear(hidden, context), nn.Linear(hidden, horizon)

    def forward(self, x):
        y = self.layers(x)
        return self.back(y), self.ahead(y)


class NBeats(nn.Module):
    def __init__(self, device, batch=1024, context=96, horizon=24, hidden=256):
        super().__init__()
        self.blocks = nn.ModuleList(NBeatsBlock(context, horizon, hidden) for _ in range(8))
        self.series, self.targets = torch.randn(batch, context, device=device), torch.randn(batch, horizon, device=device)

    def forward(self):
        left, forecast = self.series, 0
        for block in self.blocks:
            back, ahead = block(left)
            left, forecast = left - back, forecast + ahead
        return F.l1_loss(forecast, self.targets)


class DeepAr(nn.Module):
    def __init__(self, device, batch=256, length=72, count=500, covariates=4, of_series=16, hidden=64):
        super().__init__()
        self.series = nn.Embedding(count, of_series)
        self.layers = nn.LSTM(1 + covariates + of_series, hidden, num_layers=2, batch_first=True)
        self.mean, self.deviation = nn.Linear(hidden, 1), nn.Linear(hidden, 1)
        self.which = torch.randint(count, (batch,), device=device)
        values = torch.randn(batch, length + 1, 1, device=device)
        self.before, self.next = values[:, :-1].contiguous(), values[:, 1:].contiguous()
        self.known = torch.randn(batch, length, covariates, device=device)

    def forward(self):
        series = self.series(self.which)[:, None].expand(-1, self.known.shape[1], -1)
        y = self.layers(torch.cat((self.before, self.known, series), 2))[0]
        mean, deviation = self.mean(y).float(), F.softplus(self.deviation(y).float()) + 1e-3
        return (0.5 * ((self.next - mean) / deviation).square() + deviation.log()).mean()


class FrequencyMlp(nn.Module):
    """A linear layer of complex numbers, and ReLU, of each frequency along a dimension."""

    def __init__(self, width):
        super().__init__()
        self.real, self.imaginary = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, dim):
        # There is no transform of bf16.
        bins = torch.fft.rfft(x.float(), dim=dim)
        real = torch.relu(self.real(bins.real) - F.linear(bins.imag, self.imaginary.weight))
        imaginary = torch.relu(self.imaginary(bins.real) + F.linear(bins.imag, self.real.weight))
        return torch.fft.irfft(torch.complex(real.float(), imaginary.float()), n=x.shape[dim], dim=dim)


class Frets(nn.Module):
    def __init__(self, device, batch=32, length=96, channels=8, width=128, hidden=256, horizon=96):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(1, width))
        self.across, self.along = FrequencyMlp(width), FrequencyMlp(width)
        self.head = nn.Sequential(nn.Linear(length * width, hidden), nn.LeakyReLU(), nn.Linear(hidden, horizon))
        self.series, self.targets = (torch.randn(batch, n, channels, device=device) for n in (length, horizon))

    def forward(self):
        x = self.series.transpose(1, 2)[..., None] * self.embedding
        y = self.along(self.across(x, 1), 2)
        return F.mse_loss(self.head((x + y).flatten(2)).transpose(1, 2), self.targets)


class NHitsBlock(nn.Module):
    def __init__(self, context, horizon, hidden, window, steps):
        super().__init__()
        self.pool, self.sizes = nn.MaxPool1d(window), (context, horizon)
        self.layers = nn.Sequential(nn.Linear(context // window, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.back, self.ahead = nn.Linear(hidden, context // steps), nn.Linear(hidden, horizon // steps)

    def forward(self, x):
        y = self.layers(self.pool(x[:, None])[:, 0])
        coefficients = (self.back(y), self.ahead(y))
        return [F.interpolate(c[:, None], size, mode="linear")[:, 0] for c, size in zip(coefficients, self.sizes)]


class NHits(nn.Module):
    def __init__(self, device, batch=1024, context=192, horizon=48, hidden=512):
        super().__init__()
        sizes = ((8, 24), (4, 4), (1, 1))
        self.blocks = nn.ModuleList(NHitsBlock(context, horizon, hidden, window, steps) for window, steps in sizes)
        self.series, self.targets = torch.randn(batch, context, device=device), torch.randn(batch, horizon, device=device)

    def forward(self):
        left, forecast = self.series, self.series[:, -1:]
        for block in self.blocks:
            back, ahead = block(left)
            left, forecast = left - back, forecast + ahead
        return F.l1_loss(forecast, self.targets)


class MambaBlock(nn.Module):
    """Without kernels of its own: a loop over time, as the reference of its authors has (`selective_scan_ref`)."""

    def __init__(self, width, state=16, kernel=4, rank=4):
        super().__init__()
        inner = 2 * width
        self.norm, self.inputs = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, kernel, groups=inner)
        self.sizes, self.choice = (rank, state, state), nn.Linear(inner, rank + 2 * state, bias=False)
        self.step, self.outputs = nn.Linear(rank, inner), nn.Linear(inner, width, bias=False)
        self.rate, self.direct = nn.Parameter(torch.zeros(inner, state)), nn.Parameter(torch.ones(inner))

    def forward(self, x):
        x, gate = self.inputs(self.norm(x)).chunk(2, -1)
        x = F.silu(self.conv(F.pad(x.transpose(1, 2), (self.conv.kernel_size[0] - 1, 0))).transpose(1, 2))
        step, into, out = self.choice(x).split(self.sizes, -1)
        step, x, into, out = F.softplus(self.step(step).float() - 4), x.float(), into.float(), out.float()
        decay = torch.exp(step[..., None] * -self.rate.exp())
        added, state, states = (step * x)[..., None] * into[:, :, None], 0, []
        for decay, added in zip(decay.unbind(1), added.unbind(1)):
            state = decay * state + added
            states.append(state)
        y = (torch.stack(states, 1) * out[:, :, None]).sum(-1) + x * self.direct
        return self.outputs(y * F.silu(gate.float()))


class Mamba(nn.Module):
    def __init__(self, device, batch=32, inputs=8, length=192, horizon=24, width=64):
        super().__init__()
        self.embed, self.head = nn.Linear(inputs, width), nn.Linear(width, horizon)
        self.blocks = nn.ModuleList(MambaBlock(width) for _ in range(2))
        self.series, self.targets = torch.randn(batch, length, inputs, device=device), torch.randn(batch, horizon, device=device)

    def forward(self):
        x = self.embed(self.series)
        for block in self.blocks:
            x = x + block(x)
        return F.mse_loss(self.head(x[:, -1]), self.targets)


def decomposed(x):
    """The seasonal part of series, and their trend: means of 25 steps, with the ends repeated."""
    trend = trend_of(x.transpose(1, 2)).transpose(1, 2)
    return x - trend, trend


class AutoCorrelation(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory):
        length, missing = x.shape[1], x.shape[1] - memory.shape[1]
        key, value = self.key(memory), self.value(memory)
        if missing > 0:
            key, value = F.pad(key, (0, 0, 0, missing)), F.pad(value, (0, 0, 0, missing))
        # There is no transform of bf16.
        product = torch.fft.rfft(self.query(x).float(), dim=1) * torch.fft.rfft(key.float(), dim=1).conj()
        correlations = torch.fft.irfft(product, n=length, dim=1).mean(2)
        count = int(math.log(length))
        delays = correlations.mean(0).topk(count).indices
        weights = correlations.index_select(1, delays).softmax(1)
        # Each roll of the values is a window of the values twice in a row.
        places = (delays[:, None] + torch.arange(length, device=x.device)).flatten()
        rolled = torch.cat((value, value), 1).index_select(1, places).unflatten(1, (count, length))
        return self.out((rolled * weights[:, :, None, None]).sum(1))


class SeasonalEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = AutoCorrelation(width)
        self.ffn = nn.Sequential(nn.Linear(width, 2 * width, bias=False), nn.GELU(), nn.Linear(2 * width, width, bias=False))

    def forward(self, x):
        x, _ = decomposed(x + self.attention(x, x))
        return decomposed(x + self.ffn(x))[0]


class Circular(nn.Conv1d):
    """A circular convolution of 3 steps of series, without bias."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class SeasonalDecoder(SeasonalEncoder):
    def __init__(self, width, channels):
        super().__init__(width)
        self.cross, self.trend = AutoCorrelation(width), Circular(width, channels)

    def forward(self, x, memory):
        x, first = decomposed(x + self.attention(x, x))
        x, second = decomposed(x + self.cross(x, memory))
        x, third = decomposed(x + self.ffn(x))
        return x, self.trend(first + second + third)


class SeasonalNorm(nn.LayerNorm):
    def forward(self, x):
        x = super().forward(x)
        return x - x.mean(1, keepdim=True)


class Autoformer(nn.Module):
    def __init__(self, device, batch=32, length=96, label=48, horizon=96, channels=7, width=128):
        super().__init__()
        self.label, self.horizon = label, horizon
        self.encoder = nn.Sequential(Circular(channels, width), SeasonalEncoder(width), SeasonalEncoder(width), SeasonalNorm(width))
        self.embedding, self.decoder = Circular(channels, width), SeasonalDecoder(width, channels)
        self.head = nn.Sequential(SeasonalNorm(width), nn.Linear(width, channels))
        self.series, self.targets = (torch.randn(batch, n, channels, device=device) for n in (length, horizon))

    def forward(self):
        seasonal, trend = (part[:, -self.label:] for part in decomposed(self.series))
        mean = self.series.mean(1, keepdim=True).expand(-1, self.horizon, -1)
        embedded = self.embedding(F.pad(seasonal, (0, 0, 0, self.horizon)))
        x, trends = self.decoder(embedded, self.encoder(self.series))
        y = torch.cat((trend, mean), 1) + trends + self.head(x)
        return F.mse_loss(y[:, self.label:], self.targets)


class Contrastive(nn.Module):
    def __init__(self, device, batch=2048, width=256):
        super().__init__()
        self.sides = nn.ModuleList(nn.Sequential(nn.Linear(n, 1024), nn.GELU(), nn.Linear(1024, width)) for n in (512, 384))
        self.inputs = [torch.randn(batch, n, device=device) for n in (512, 384)]
        self.sharpness, self.same = nn.Parameter(torch.full((1,), 2.66)), torch.arange(batch, device=device)

    def forward(self):
        a, b = (F.normalize(side(x), dim=-1) for side, x in zip(self.sides, self.inputs))
        scores = a @ b.T * self.sharpness.exp()
        return 0.5 * (F.cross_entropy(scores, self.same) + F.cross_entropy(scores.T, self.same))


class Graph(nn.Module):
    def __init__(self, device, nodes=20_000, edges=120_000, sizes=(128, 128, 128, 40)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.x, self.drop = torch.randn(nodes, sizes[0], device=device), nn.Dropout(0.5)
        self.source, self.target = (torch.randint(nodes, (edges,), device=device) for _ in range(2))
        self.weights = torch.rand(edges, 1, device=device)
        self.labels = torch.randint(sizes[-1], (nodes,), device=device)

    def forward(self):
        x = self.x
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = self.drop(torch.relu(x))
            y = layer(x)
            said = y.index_select(0, self.source) * self.weights
            x = torch.zeros_like(y).index_add(0, self.target, said.to(y.dtype))
        return F.cross_entropy(x, self.labels)


class Points(nn.Module):
    def __init__(self, device, batch=32, count=1024, sizes=(3, 64, 128, 1024), classes=40):
        super().__init__()
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.last = nn.Sequential(nn.Linear(sizes[-1], 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, classes))
        self.clouds = torch.randn(batch, 3, count, device=device)
        self.labels = torch.randint(classes, (batch,), device=device)

    def forward(self):
        return F.cross_entropy(self.last(self.layers(self.clouds).amax(2)), self.labels)


class Experts(nn.Module):
    """Each token goes to two experts, of which each takes at most 1.25 times its share."""

    def __init__(self, count, width, hidden):
        super().__init__()
        self.count, self.router = count, nn.Linear(width, count, bias=False)
        self.gate, self.up = (nn.Parameter(0.02 * torch.randn(count, width, hidden)) for _ in range(2))
        self.down = nn.Parameter(0.02 * torch.randn(count, hidden, width))

    def forward(self, x):
        room = len(x) * 2 * 5 // (4 * self.count)
        best, experts = self.router(x).float().topk(2)
        weights, experts = best.softmax(-1).flatten(), experts.flatten()
        chosen = F.one_hot(experts, self.count)
        place = (chosen.cumsum(0) * chosen).sum(1) - 1
        slot = torch.where(place < room, experts * room + place, self.count * room)
        inputs = x.new_zeros(self.count * room + 1, x.shape[1]).index_add(0, slot, x.repeat_interleave(2, 0, output_size=2 * len(x)))
        inputs = inputs[:-1].unflatten(0, (self.count, room))
        y = torch.bmm(F.silu(torch.bmm(inputs, self.gate)) * torch.bmm(inputs, self.up), self.down)
        y = F.pad(y.flatten(0, 1), (0, 0, 0, 1)).index_select(0, slot)
        return (y * weights.unsqueeze(1).to(y.dtype)).unflatten(0, (-1, 2)).sum(1)


class ExpertBlock(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(8, width, hidden)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.experts(self.norm2(x).flatten(0, 1)).view_as(x)


class EdgeAttention(nn.Module):
    def __init__(self, inputs, heads, width):
        super().__init__()
        self.heads, self.transform = heads, nn.Linear(inputs, heads * width, bias=False)
        self.source, self.target = (nn.Parameter(0.1 * torch.randn(heads, width)) for _ in range(2))
        self.drop = nn.Dropout(0.6)

    def forward(self, x, source, target):
        h = self.transform(self.drop(x)).unflatten(1, (self.heads, -1))
        first, second = (h.float() * self.source).sum(-1), (h.float() * self.target).sum(-1)
        scores = F.leaky_relu(first.index_select(0, source) + second.index_select(0, target), 0.2)
        lowest = torch.full_like(first, -torch.inf)
        largest = lowest.scatter_reduce(0, target[:, None].expand_as(scores), scores.detach(), "amax")
        e = torch.exp(scores - largest.index_select(0, target))
        sums = torch.zeros_like(largest).index_add(0, target, e)
        weights = self.drop(e / sums.index_select(0, target))
        said = h.index_select(0, source) * weights.unsqueeze(2).to(h.dtype)
        return torch.zeros_like(h).index_add(0, target, said).flatten(1)


class GraphAttention(nn.Module):
    def __init__(self, device, nodes=20_000, edges=120_000, features=128, classes=40):
        super().__init__()
        self.first, self.second = EdgeAttention(features, 8, 16), EdgeAttention(128, 1, classes)
        self.x = torch.randn(nodes, features, device=device)
        self.source, self.target = (torch.randint(nodes, (edges,), device=device) for _ in range(2))
        self.labels = torch.randint(classes, (nodes,), device=device)

    def forward(self):
        x = F.elu(self.first(self.x, self.source, self.target))
        return F.cross_entropy(self.second(x, self.source, self.target), self.labels)


def layers_of(*sizes):
    """Linear layers with ReLU between them."""
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Clicks(nn.Module):
    def __init__(self, device, batch=2048, numbers=13, tables=26, rows=10_000, width=16):
        super().__init__()
        self.bottom, pairs = nn.Sequential(*layers_of(numbers, 512, 256, width), nn.ReLU()), tables * (tables + 1) // 2
        self.top = layers_of(pairs + width, 512, 256, 1)
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.ids = [torch.randint(rows, (batch,), device=device) for _ in range(tables)]
        self.numbers = torch.randn(batch, numbers, device=device)
        self.clicked = torch.randint(2, (batch, 1), device=device).float()
        i, j = torch.tril_indices(tables + 1, tables + 1, -1, device=device)
        self.lower = i * (tables + 1) + j

    def forward(self):
        x = self.bottom(self.numbers)
        vectors = torch.stack([x.float(), *(table(ids) for table, ids in zip(self.tables, self.ids))], 1)
        products = torch.bmm(vectors, vectors.mT).flatten(1).index_select(1, self.lower)
        return F.binary_cross_entropy_with_logits(self.top(torch.cat((x, products), 1)).float(), self.clicked)


class Flow(nn.Module):
    def __init__(self, device, batch=4096, half=32, hidden=256):
        super().__init__()
        self.couplings = nn.ModuleList(layers_of(half, hidden, hidden, 2 * half) for _ in range(8))
        self.data = torch.randn(batch, 2 * half, device=device)

    def forward(self):
        a, b = self.data.chunk(2, 1)
        log_det = 0
        for coupling in self.couplings:
            scale, shift = coupling(a).float().chunk(2, 1)
            scale = torch.tanh(scale)
            a, b = b * torch.exp(scale) + shift, a
            log_det = log_det + scale.sum(1)
        return (0.5 * (a.square().sum(1) + b.square().sum(1)) - log_det).mean()


class Policy(nn.Module):
    def __init__(self, device, batch=8192, observed=64, hidden=256, actions=18):
        super().__init__()
        self.policy, self.value = (
            nn.Sequential(nn.Linear(observed, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
            for outputs in (actions, 1)
        )
        self.seen, self.taken = torch.randn(batch, observed, device=device), torch.randint(actions, (batch, 1), device=device)
        self.before = 0.1 * torch.randn(batch, device=device) - 2.9
        self.advantage, self.returns = (torch.randn(batch, device=device) for _ in range(2))

    def forward(self):
        chances = F.log_softmax(self.policy(self.seen).float(), -1)
        advantage = (self.advantage - self.advantage.mean()) / (self.advantage.std() + 1e-8)
        ratio = torch.exp(chances.gather(1, self.taken).squeeze(1) - self.before)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(chances * chances.exp()).sum(-1).mean()
        error = F.mse_loss(self.value(self.seen).float().squeeze(1), self.returns)
        return 0.5 * error - gain - 0.01 * entropy


# Name to what makes the model on a device; it computes the loss of its batch.
MODELS = {
    "gpt of characters": lambda device: Gpt(device, vocabulary=65, context=256, width=384, layers=6, batch=64),
    "gpt of words": lambda device: Gpt(device, vocabulary=50257, context=256, width=512, layers=4, batch=16),
    "llama": lambda device: RotaryText(device, [RotaryBlock(512, 1376) for _ in range(4)], 32000, context=512, width=512, batch=8),
    "translation": Translation,
    "masked words": MaskedWords,
    "experts": lambda device: RotaryText(device, [ExpertBlock(512, 1024) for _ in range(2)], 8000, context=256, width=512, batch=16),
    "vision transformer": VisionTransformer,
    "resnet-18": ResNet,
    "autoencoder": Autoencoder,
    "u-net": UNet,
    "convnext": ConvNext,
    "mobilenet": MobileNet,
    **VISION,
    "temporal convolutions": TemporalConvolutions,
    "wavenet": WaveNet,
    "lstm": lambda device: Recurrent(device, nn.LSTM),
    "gru": lambda device: Recurrent(device, nn.GRU),
    "n-beats": NBeats,
    "deepar": DeepAr,
    "frets": Frets,
    "n-hits": NHits,
    "mamba": Mamba,
    "autoformer": Autoformer,
    **SERIES,
    "mlp": Mlp,
    "two towers": TwoTowers,
    "contrastive": Contrastive,
    "graph": Graph,
    "attention of a graph": GraphAttention,
    "clicks": Clicks,
    "flow": Flow,
    "policy": Policy,
    "points": Points,
}
