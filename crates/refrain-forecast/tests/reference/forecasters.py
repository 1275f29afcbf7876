"""Makes the references of forecasters, in PyTorch float64: the forecast of given weights, and gradients.

    pip install torch numpy safetensors && python forecasters.py

forecasters.safetensors holds, all F64, for each case `<case>/x` [B, C, L], `<case>/forecast` [B, C, H], and for each parameter
`<case>/weight/<name>` and `<case>/gradient/<name>`, the gradient of the mean of the squared forecast. The cases are

    dlinear, dlinear_individual        DLinear (Zeng et al., AAAI 2023) with a moving average of 7 rows: C 3, L 12, H 5
    itransformer, itransformer_plain   iTransformer (Liu et al., ICLR 2024) with and without the normalisation of windows: C 3, L 12,
                                       H 5, width 8, 2 heads, 2 layers, feed-forward network of 6
    tsmixer, tsmixer_batch             TSMixer (Chen et al., 2023): C 3, L 12, H 5, 2 layers, feed-forward network of 6; with layer
                                       norm, ReLU and RevIN, and with batch norm in training, GELU and without RevIN
    tsmixer_covariates                 its extension: the same with 2 past, 1 future and 2 static covariates, width 4; also
                                       `<case>/past` [B, 2, L], `<case>/future` [B, 1, L + H] and `<case>/statics` [B, 2]
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


WIDTH, HEADS, LAYERS, FFN = 8, 2, 2, 6


def itransformer(x, w, normalised):
    # As in the paper: a token a channel, attention among them, post-norm layers and a norm at the end.
    mean = x.mean(-1, keepdim=True)
    deviation = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    h = (x - mean) / deviation if normalised else x

    def linear(h, name):
        return F.linear(h, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(h, name):
        return F.layer_norm(h, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    h = linear(h, "embed")
    for layer in range(LAYERS):
        at = f"layers.{layer}"
        q, k, v = linear(h, f"{at}.attn.qkv").unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        heads = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        h = norm(h + linear(heads, f"{at}.attn.o"), f"{at}.norm1")
        hidden = F.gelu(linear(h, f"{at}.ffn.0"))
        h = norm(h + linear(hidden, f"{at}.ffn.2"), f"{at}.norm2")
    y = linear(norm(h, "norm"), "head")
    return y * deviation + mean if normalised else y


def itransformer_shapes():
    def linear(name, inputs, outputs):
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name):
        return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}

    shapes = linear("embed", CONTEXT, WIDTH) | norm("norm") | linear("head", WIDTH, HORIZON)
    for layer in range(LAYERS):
        at = f"layers.{layer}"
        shapes |= norm(f"{at}.norm1") | norm(f"{at}.norm2")
        shapes |= linear(f"{at}.attn.qkv", WIDTH, 3 * WIDTH) | linear(f"{at}.attn.o", WIDTH, WIDTH)
        shapes |= linear(f"{at}.ffn.0", WIDTH, FFN) | linear(f"{at}.ffn.2", FFN, WIDTH)
    return shapes


def tsmixer(x, w, batch_norm, activation, revin):
    # As in the paper: residual branches along the rows and along the channels, each with a norm over both before it.
    mean = x.mean(-1, keepdim=True)
    deviation = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    # The statistics of a window are constants, as in the reference implementation.
    h = x
    if revin:
        h = (x - mean) / deviation * w["revin.weight"][:, None] + w["revin.bias"][:, None]

    def linear(h, name):
        return F.linear(h, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(h, name):
        flat, weight, bias = h.flatten(1), w[f"{name}.weight"], w[f"{name}.bias"]
        if batch_norm:
            flat = F.batch_norm(flat, None, None, weight, bias, training=True, eps=1e-3)
        else:
            flat = F.layer_norm(flat, flat.shape[1:], weight, bias, 1e-3)
        return flat.view(h.shape)

    for layer in range(LAYERS):
        at = f"layers.{layer}"
        h = h + activation(linear(norm(h, f"{at}.time_norm"), f"{at}.time"))
        rows = norm(h, f"{at}.feature_norm").transpose(1, 2)
        h = h + linear(activation(linear(rows, f"{at}.features.0")), f"{at}.features.2").transpose(1, 2)
    y = linear(h, "head")
    if revin:
        y = (y - w["revin.bias"][:, None]) / (w["revin.weight"][:, None] + 1e-10) * deviation + mean
    return y


def tsmixer_shapes(revin):
    def linear(name, inputs, outputs):
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name):
        return {f"{name}.weight": (CHANNELS * CONTEXT,), f"{name}.bias": (CHANNELS * CONTEXT,)}

    shapes = linear("head", CONTEXT, HORIZON)
    if revin:
        shapes |= {"revin.weight": (CHANNELS,), "revin.bias": (CHANNELS,)}
    for layer in range(LAYERS):
        at = f"layers.{layer}"
        shapes |= norm(f"{at}.time_norm") | norm(f"{at}.feature_norm") | linear(f"{at}.time", CONTEXT, CONTEXT)
        shapes |= linear(f"{at}.features.0", CHANNELS, FFN) | linear(f"{at}.features.2", FFN, CHANNELS)
    return shapes


MIXER_WIDTH = 4


def tsmixer_covariates(x, w, past, future, statics):
    # The past is brought to the rows of the horizon; each mixing of features sees the static covariates; norms come last.
    def linear(h, name):
        return F.linear(h, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(h, name):
        shape = h.shape[1:]
        weight, bias = w[f"{name}.weight"].view(shape), w[f"{name}.bias"].view(shape)
        return F.layer_norm(h, shape, weight, bias, 1e-3)

    def features(h, name):
        of_series = F.relu(linear(statics, f"{name}.statics"))[:, None].expand(-1, h.shape[1], -1)
        h = torch.cat([h, of_series], dim=-1)
        mixed = linear(F.relu(linear(h, f"{name}.up")), f"{name}.down")
        return norm(mixed + linear(h, f"{name}.skip"), f"{name}.norm")

    def time(h, name):
        mixed = F.relu(linear(h.transpose(1, 2), f"{name}.linear")).transpose(1, 2)
        return norm(mixed + h, f"{name}.norm")

    mean = x.mean(-1, keepdim=True)
    deviation = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    h = (x - mean) / deviation
    known, ahead = future.split([CONTEXT, HORIZON], dim=-1)
    h = features(linear(torch.cat([h, past, known], dim=1), "align").transpose(1, 2), "past")
    h = torch.cat([h, features(ahead.transpose(1, 2), "future")], dim=-1)
    for layer in range(LAYERS):
        h = features(time(h, f"layers.{layer}.time"), f"layers.{layer}.features")
    return linear(h, "head").transpose(1, 2) * deviation + mean


def tsmixer_covariates_shapes():
    def linear(name, inputs, outputs):
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name, width):
        return {f"{name}.norm.weight": (HORIZON * width,), f"{name}.norm.bias": (HORIZON * width,)}

    def features(name, inputs):
        inputs += MIXER_WIDTH
        shapes = linear(f"{name}.statics", 2, MIXER_WIDTH) | linear(f"{name}.up", inputs, FFN)
        shapes |= linear(f"{name}.down", FFN, MIXER_WIDTH) | linear(f"{name}.skip", inputs, MIXER_WIDTH)
        return shapes | norm(name, MIXER_WIDTH)

    shapes = linear("align", CONTEXT, HORIZON) | features("past", CHANNELS + 2 + 1) | features("future", 1)
    for layer, width in enumerate([2 * MIXER_WIDTH, MIXER_WIDTH]):
        at = f"layers.{layer}"
        shapes |= linear(f"{at}.time.linear", HORIZON, HORIZON) | norm(f"{at}.time", width)
        shapes |= features(f"{at}.features", width)
    return shapes | linear("head", MIXER_WIDTH, CHANNELS)


COVARIATES = {
    "tsmixer_covariates": {"past": (BATCH, 2, CONTEXT), "future": (BATCH, 1, CONTEXT + HORIZON), "statics": (BATCH, 2)}
}

CASES = {
    "dlinear": (dlinear_shapes(False), lambda x, w: dlinear(x, w, False)),
    "dlinear_individual": (dlinear_shapes(True), lambda x, w: dlinear(x, w, True)),
    "itransformer": (itransformer_shapes(), lambda x, w: itransformer(x, w, True)),
    "itransformer_plain": (itransformer_shapes(), lambda x, w: itransformer(x, w, False)),
    "tsmixer": (tsmixer_shapes(True), lambda x, w: tsmixer(x, w, False, F.relu, True)),
    "tsmixer_batch": (tsmixer_shapes(False), lambda x, w: tsmixer(x, w, True, F.gelu, False)),
    "tsmixer_covariates": (tsmixer_covariates_shapes(), tsmixer_covariates),
}


def main():
    generator = torch.Generator().manual_seed(7)

    def random(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors = {}
    for case, (shapes, forward) in CASES.items():
        x = random((BATCH, CHANNELS, CONTEXT))
        weights = {name: (0.3 * random(shape)).requires_grad_() for name, shape in shapes.items()}
        covariates = {name: random(shape) for name, shape in COVARIATES.get(case, {}).items()}
        tensors |= {f"{case}/{name}": values for name, values in covariates.items()}
        forecast = forward(x, weights, **covariates)
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
