"""The models of `vision.rs` and `sounds.rs` of `crates/refrain-nn/examples/models`, with the same sizes, in PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """A pre-norm layer with heads of 64."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width, width // 64)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Residuals(nn.Module):
    """Residual blocks, each ReLU, 3 x 3, ReLU, 1 x 1; and a ReLU behind them."""

    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1)) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return torch.relu(x)


class VqVae(nn.Module):
    def __init__(self, device, batch=64, width=128, codes=512, of_code=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1),
            Residuals(width), nn.Conv2d(width, of_code, 1),
        )
        self.codebook = nn.Parameter(torch.empty(codes, of_code).uniform_(-1 / codes, 1 / codes))
        self.decoder = nn.Sequential(
            nn.Conv2d(of_code, width, 3, 1, 1), Residuals(width),
            nn.ConvTranspose2d(width, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1),
        )
        self.images = torch.randn(batch, 3, 32, 32, device=device)

    def forward(self):
        z = self.encoder(self.images).permute(0, 2, 3, 1).float()
        with torch.no_grad():
            flat = z.flatten(0, 2)
            squares = flat.square().sum(1, keepdim=True) + self.codebook.square().sum(1)
            nearest = (squares - 2 * (flat @ self.codebook.T)).argmin(1).view(z.shape[:-1])
        q = F.embedding(nearest, self.codebook)
        of_codes, of_encoder = F.mse_loss(q, z.detach()), F.mse_loss(z, q.detach())
        # The gradient goes straight through to the encoder.
        q = (z + (q - z).detach()).permute(0, 3, 1, 2)
        return F.mse_loss(self.decoder(q), self.images) + of_codes + 0.25 * of_encoder


def sinusoids(x, width):
    """Sines and cosines of numbers at half as many rates as there are features."""
    half = width // 2
    angles = x[:, None] * torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
    return torch.cat((angles.sin(), angles.cos()), 1)


def positions(side, width, device):
    """The positions of a square of patches, half of the features for columns and half for rows."""
    along = sinusoids(torch.arange(side, device=device), width // 2)
    columns, rows = along[None].expand(side, -1, -1), along[:, None].expand(-1, side, -1)
    return torch.cat((columns, rows), 2).flatten(0, 1)


def rows(x, index):
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))


class MaskedAutoencoder(nn.Module):
    def __init__(self, device, batch=128, patch=8, side=8, seen=16, width=192, narrow=128):
        super().__init__()
        self.seen, self.patches = seen, nn.Conv2d(3, width, patch, patch)
        self.encoder = nn.Sequential(*(Encoder(width) for _ in range(6)), nn.LayerNorm(width), nn.Linear(width, narrow))
        self.unseen = nn.Parameter(0.02 * torch.randn(1, 1, narrow))
        self.decoder = nn.Sequential(*(Encoder(narrow) for _ in range(2)), nn.LayerNorm(narrow), nn.Linear(narrow, 3 * patch**2))
        self.places = [positions(side, n, device) for n in (width, narrow)]
        self.images = torch.randn(batch, 3, side * patch, side * patch, device=device)
        targets = self.images.view(batch, 3, side, patch, side, patch).permute(0, 2, 4, 3, 5, 1)
        self.targets = targets.reshape(batch, side**2, 3 * patch**2)

    def forward(self):
        batch, count, _ = self.targets.shape
        order = torch.rand(batch, count, device=self.images.device).argsort(1)
        inverse = order.argsort(1)
        x = self.patches(self.images).flatten(2).transpose(1, 2) + self.places[0]
        x = self.encoder(rows(x, order[:, :self.seen]))
        x = rows(torch.cat((x, self.unseen.to(x.dtype).expand(batch, count - self.seen, -1)), 1), inverse)
        losses = F.mse_loss(self.decoder(x + self.places[1]), self.targets, reduction="none").mean(2)
        return (losses * (inverse >= self.seen)).sum() / (batch * (count - self.seen))


def in_windows(x, window):
    batch, side, _, width = x.shape
    x = x.view(batch, side // window, window, side // window, window, width)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window**2, width)


def from_windows(x, shape, window):
    batch, side, _, width = shape
    x = x.view(batch, side // window, side // window, window, window, width)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(shape)


def shifted_mask(side, window, device):
    """What is added to the scores in shifted windows: tokens from opposite sides of the image do not see each other."""
    i = torch.arange(side, device=device)
    part = (i >= side - window).int() + (i >= side - window // 2).int()
    regions = in_windows((3 * part[:, None] + part)[None, :, :, None], window)
    return -100.0 * (regions != regions.transpose(1, 2))[:, None]


def relative_places(window, device):
    """For each query and key of a window, the place of their distance in the table of biases."""
    i = torch.arange(window**2, device=device)
    y, x = (part[:, None] - part + window - 1 for part in (i // window, i % window))
    return (y * (2 * window - 1) + x).flatten()


class WindowBlock(nn.Module):
    def __init__(self, width, window):
        super().__init__()
        self.heads, self.window = width // 32, window
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width, self.heads)
        self.biases = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, self.heads))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, places, mask=None):
        tokens, shift = self.window**2, self.window // 2
        bias = self.biases.index_select(0, places).view(tokens, tokens, -1).permute(2, 0, 1)[None]
        y = self.norm1(x)
        if mask is not None:
            bias = (bias + mask).expand(len(x), -1, -1, -1, -1).flatten(0, 1)
            y = y.roll((-shift, -shift), (1, 2))
        y = from_windows(self.attention(in_windows(y, self.window), bias), x.shape, self.window)
        if mask is not None:
            y = y.roll((shift, shift), (1, 2))
        x = x + y
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Swin(nn.Module):
    def __init__(self, device, batch=128, width=96, window=4, classes=10):
        super().__init__()
        self.patches, self.first_norm = nn.Conv2d(3, width, 2, 2), nn.LayerNorm(width)
        self.stages = nn.ModuleList(nn.ModuleList(WindowBlock(n, window) for _ in range(2)) for n in (width, 2 * width))
        self.merge = nn.Sequential(nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False))
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)
        self.places, self.masks = relative_places(window, device), [shifted_mask(side, window, device) for side in (16, 8)]
        self.images = torch.randn(batch, 3, 32, 32, device=device)
        self.labels = torch.randint(classes, (batch,), device=device)

    def forward(self):
        x = self.first_norm(self.patches(self.images).permute(0, 2, 3, 1))
        for i, ((block, shifted), mask) in enumerate(zip(self.stages, self.masks)):
            if i > 0:
                # Four neighbours become one token.
                x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
                x = self.merge(x.permute(0, 1, 3, 4, 2, 5).flatten(3))
            x = shifted(block(x, self.places), self.places, mask)
        return F.cross_entropy(self.head(self.norm(x).mean((1, 2))), self.labels)


def zero_linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def modulated(x, shift, scale):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class DiffusionBlock(nn.Module):
    """Begins as the identity (adaLN-zero)."""

    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width, width // 64)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = zero_linear(width, 6 * width)

    def forward(self, x, conditions):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(conditions)[:, None].chunk(6, 2)
        x = x + gate1 * self.attention(modulated(x, shift1, scale1))
        return x + gate2 * self.down(F.gelu(self.up(modulated(x, shift2, scale2)), approximate="tanh"))


class DiffusionTransformer(nn.Module):
    def __init__(self, device, batch=16, channels=4, side=16, width=384, waves=256, classes=1000, times=1000):
        super().__init__()
        self.side, self.waves, self.classes, self.times = side, waves, classes, times
        self.patches = nn.Conv2d(channels, width, 2, 2)
        self.time = nn.Sequential(nn.Linear(waves, width), nn.SiLU(), nn.Linear(width, width))
        # One more for an unknown class.
        self.table = nn.Embedding(classes + 1, width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.blocks = nn.ModuleList(DiffusionBlock(width) for _ in range(6))
        self.modulation, self.head = zero_linear(width, 2 * width), zero_linear(width, 4 * channels)
        self.places = positions(side, width, device)
        # The part of the image's variance that is left at each time.
        self.left = (1 - torch.linspace(1e-4, 0.02, times, device=device)).cumprod(0)
        self.latents = torch.randn(batch, channels, 2 * side, 2 * side, device=device)
        self.labels = torch.randint(classes, (batch,), device=device)

    def forward(self):
        batch, device = len(self.labels), self.labels.device
        when = torch.randint(self.times, (batch,), device=device)
        noise = torch.randn_like(self.latents)
        left = self.left.index_select(0, when)[:, None, None, None]
        noisy = self.latents * left.sqrt() + noise * (1 - left).sqrt()
        labels = self.labels.masked_fill(torch.rand(batch, device=device) < 0.1, self.classes)

        conditions = F.silu(self.table(labels) + self.time(sinusoids(when, self.waves)))
        x = self.patches(noisy).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, conditions)
        y = self.head(modulated(x, *self.modulation(conditions)[:, None].chunk(2, 2)))
        y = y.unflatten(2, (2, 2, -1)).unflatten(1, (self.side, self.side))
        return F.mse_loss(y.permute(0, 5, 1, 3, 2, 4).reshape(noise.shape), noise)


class FeedForward(nn.Sequential):
    def __init__(self, width):
        drop = nn.Dropout(0.1)
        super().__init__(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), drop, nn.Linear(4 * width, width), drop)


class ConformerBlock(nn.Module):
    def __init__(self, width, heads=4, kernel=31):
        super().__init__()
        self.first, self.second, self.drop = FeedForward(width), FeedForward(width), nn.Dropout(0.1)
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.conv_norm = nn.LayerNorm(width)
        self.convolution = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width),
            nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = x + 0.5 * self.first(x)
        x = x + self.drop(self.attention(self.attention_norm(x)))
        x = x + self.drop(self.convolution(self.conv_norm(x).transpose(1, 2)).transpose(1, 2))
        return self.norm(x + 0.5 * self.second(x))


class Conformer(nn.Module):
    def __init__(self, device, batch=16, frames=256, features=80, width=144, classes=32):
        super().__init__()
        blocks = (ConformerBlock(width) for _ in range(4))
        self.layers = nn.Sequential(nn.Linear(features, width), nn.Dropout(0.1), *blocks, nn.Linear(width, classes))
        self.sounds = torch.randn(batch, frames, features, device=device)
        self.labels = torch.randint(classes, (batch, frames), device=device)

    def forward(self):
        return F.cross_entropy(self.layers(self.sounds).flatten(0, 1), self.labels.flatten())


# Name to what makes the model on a device; it computes the loss of its batch.
MODELS = {
    "vq-vae": VqVae,
    "masked autoencoder": MaskedAutoencoder,
    "swin": Swin,
    "diffusion transformer": DiffusionTransformer,
    "conformer": Conformer,
}
