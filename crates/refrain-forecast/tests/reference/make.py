"""Makes the whole-model references: three training steps of `refrain bench step`, in PyTorch float64.

    pip install torch numpy safetensors && python make.py [seed] [small] [large] [cross] [nlinear] [nlinear_individual]

Each step is forward, MSE, backward, clipping of the global gradient norm at 1.0 (scaled by
min(1, 1 / (norm + 1e-6))) and AdamW (lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01 on every
parameter). The model maps x [B, L] (B = batch x channels) to [B, O]:

    n = (L - P) / S + 1 patches: h = x.unfold(-1, P, S) embed.weight^T + embed.bias + pos        [B, n, D]
    each layer l:  h += o(attention(q, k, v of norm1(h))), H heads that are consecutive runs of D, scale
                   (D / H)^-0.5, no mask; then h += ffn.2(gelu_tanh(ffn.0(norm2(h)))); LayerNorm eps 1e-5
    head:          h.reshape(B, n D) head.weight^T + head.bias

Linear weights are [out, in]; every linear layer has a bias. No dropout and no final norm.

`cross` is cross-asset attention, smaller than in the benchmark: it maps x [B, S, F] to logits [B, S, 3], and the loss is
the mean cross entropy with classes [B, S] instead of MSE.

    h[b, s] = x[b, s] embed.weight[s] + embed.bias[s]                                            [B, S, D]
    each layer l:  q, k, v = the thirds of attn.qkv(norm1(h)); h += o(attention), where the scores of a head are
                   attn.temperature[head] * cosine(q, k); then the feed-forward network as above
    head:          norm(h) head.weight^T + head.bias

`nlinear` and `nlinear_individual` are NLinear (Zeng et al., AAAI 2023), whose x is [B, C, L], y [B, C, O]; the loss is MSE:

    h = x - x[..., -1:];  shared: h linear.weight^T + linear.bias, weight [O, L]
                          individual: h[:, c] linear.weight[c] + linear.bias[c], weight [C, L, O], bias [C, 1, O]
    head:                 + x[..., -1:]

Neither the initial weights nor the batches are stored: both are computed. Element i (row-major) of stream s is

    let mut z = ((s << 32) + i + 1).wrapping_mul(0x9E3779B97F4A7C15);     // u64, splitmix64
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB);
    let u = ((z ^ (z >> 31)) >> 40) as f32 * 2f32.powi(-23) - 1.0;        // exact, in [-1, 1)

A parameter is `offset + scale * u` in f32 with its own stream, scale (a power of two, so the product is exact)
and offset. The batch of step t = 0, 1, 2 is x = 2 * u of stream 1000 + 2 t, shape [B, L], and y = 2 * u of
stream 1001 + 2 t, shape [B, O]. The f64 computation starts from exactly these f32 values. For `cross` x is [B, S, F],
and the classes are floor(1.5 * (u + 1)) of stream 1001 + 2 t, shape [B, S].

steps_<configuration>.safetensors holds
    losses [3] F64, grad_norms [3] F64 (before clipping), and for each parameter, F32,
    grad/<name>    gradient of the first step before clipping
    weight/<name>  value after the third step
both at the row-major positions 0, stride, 2 stride, ... only. The metadata key `steps` is JSON:
    config      context, patch, stride, d_model, heads, layers, ffn, batch, channels, output; of `cross`: sources,
                features, d_model, heads, layers, ffn, batch; of `nlinear`: context, output, batch, channels, individual
    params      in the order of the streams: name, shape, stream (of the generator), scale, offset,
                stride (of the stored elements); sum and sum_sq of all elements of the weight after step three, and
                grad_sum and grad_sum_sq of the first gradient, computed in f64;
                f32_weight_max, f32_weight_rms, f32_grad_max, f32_grad_rms: the largest and the root mean square
                difference that PyTorch's own f32 run has from these values over all elements, as a yardstick
                of what f32 rounding amounts to
    f32_losses, f32_grad_norms    of that f32 run
AdamW divides a gradient by its own size, so where a gradient is close to nothing its rounding noise becomes a step
of up to lr: a few elements of the large weights differ by 1e-5 in f32 while the rms is 1e-8. The root mean square
is the measure that holds for other orders of summation, the largest difference is not. For attn.k.bias the gradient
is zero by mathematics (softmax ignores a shift), so there all elements are noise and its weights say nothing.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

KEYS = ("context", "patch", "stride", "d_model", "heads", "layers", "ffn", "batch", "channels", "output")
CONFIGS = {
    "seed": (24, 8, 4, 64, 4, 2, 256, 64, 20, 1),
    "small": (336, 16, 8, 16, 4, 3, 128, 128, 7, 96),
    "large": (336, 16, 8, 128, 16, 3, 256, 32, 21, 96),
}
CROSS = dict(sources=5, features=6, d_model=32, heads=4, layers=2, ffn=64, batch=24)
NLINEAR = dict(context=48, output=12, batch=16, channels=5)
STEPS, WHOLE, STRIDE = 3, 4096, 7  # tensors of more than WHOLE elements are stored at every STRIDE-th


def generate(stream, shape):
    i = np.arange(math.prod(shape), dtype=np.uint64)
    z = (np.uint64(stream << 32) + i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    u = ((z ^ (z >> np.uint64(31))) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return torch.from_numpy(u.reshape(shape))


def linear_layer(name, inputs, outputs):
    scale = 2.0 ** round(-0.5 * math.log2(inputs))
    return [(f"{name}.weight", [outputs, inputs], scale, 0.0), (f"{name}.bias", [outputs], 2.0**-4, 0.0)]


def norm_layer(name, d):
    return [(f"{name}.weight", [d], 2.0**-3, 1.0), (f"{name}.bias", [d], 2.0**-4, 0.0)]


def describe(c):
    """Name, shape, scale and offset of every parameter, in order."""
    if "sources" in c:
        return describe_cross(c)
    if "individual" in c:
        return describe_nlinear(c)
    n, d = (c["context"] - c["patch"]) // c["stride"] + 1, c["d_model"]
    params = [*linear_layer("embed", c["patch"], d), ("pos", [n, d], 2.0**-4, 0.0)]
    for l in range(c["layers"]):
        params += norm_layer(f"layers.{l}.norm1", d)
        for projection in "qkvo":
            params += linear_layer(f"layers.{l}.attn.{projection}", d, d)
        params += norm_layer(f"layers.{l}.norm2", d)
        params += linear_layer(f"layers.{l}.ffn.0", d, c["ffn"]) + linear_layer(f"layers.{l}.ffn.2", c["ffn"], d)
    return params + linear_layer("head", n * d, c["output"])


def describe_cross(c):
    s, f, d = c["sources"], c["features"], c["d_model"]
    params = [("embed.weight", [s, f, d], 2.0 ** round(-0.5 * math.log2(f)), 0.0), ("embed.bias", [s, d], 2.0**-4, 0.0)]
    for l in range(c["layers"]):
        params += norm_layer(f"layers.{l}.norm1", d)
        params += linear_layer(f"layers.{l}.attn.qkv", d, 3 * d) + linear_layer(f"layers.{l}.attn.o", d, d)
        params += [(f"layers.{l}.attn.temperature", [c["heads"]], 0.5, 4.0)]
        params += norm_layer(f"layers.{l}.norm2", d)
        params += linear_layer(f"layers.{l}.ffn.0", d, c["ffn"]) + linear_layer(f"layers.{l}.ffn.2", c["ffn"], d)
    return params + norm_layer("norm", d) + linear_layer("head", d, 3)


def describe_nlinear(c):
    if not c["individual"]:
        return linear_layer("linear", c["context"], c["output"])
    scale = 2.0 ** round(-0.5 * math.log2(c["context"]))
    weight = ("linear.weight", [c["channels"], c["context"], c["output"]], scale, 0.0)
    return [weight, ("linear.bias", [c["channels"], 1, c["output"]], 2.0**-4, 0.0)]


def forward(c, w, x):
    if "individual" in c:
        last = x[..., -1:].detach()
        weight, bias = w["linear.weight"], w["linear.bias"]
        if c["individual"]:
            return torch.einsum("bcl,clo->bco", x - last, weight) + bias[:, 0] + last
        return F.linear(x - last, weight, bias) + last
    b, d, heads = x.shape[0], c["d_model"], c["heads"]

    def linear(h, name):
        return F.linear(h, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(h, name):
        return F.layer_norm(h, [d], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def split(h):
        return h.unflatten(-1, (heads, d // heads)).transpose(1, 2)

    def feed_forward(h, l):
        a = F.gelu(linear(norm(h, f"layers.{l}.norm2"), f"layers.{l}.ffn.0"), approximate="tanh")
        return h + linear(a, f"layers.{l}.ffn.2")

    if "sources" in c:
        h = torch.einsum("bsf,sfd->bsd", x, w["embed.weight"]) + w["embed.bias"]
        for l in range(c["layers"]):
            q, k, v = map(split, linear(norm(h, f"layers.{l}.norm1"), f"layers.{l}.attn.qkv").chunk(3, -1))
            t = w[f"layers.{l}.attn.temperature"][:, None, None]
            scores = t * (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2))
            h = h + linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), f"layers.{l}.attn.o")
            h = feed_forward(h, l)
        return linear(norm(h, "norm"), "head")
    h = linear(x.unfold(-1, c["patch"], c["stride"]), "embed") + w["pos"]
    for l in range(c["layers"]):
        a = norm(h, f"layers.{l}.norm1")
        q, k, v = (split(linear(a, f"layers.{l}.attn.{p}")) for p in "qkv")
        scores = q @ k.transpose(-1, -2) * (d // heads) ** -0.5
        a = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        h = feed_forward(h + linear(a, f"layers.{l}.attn.o"), l)
    return linear(h.reshape(b, -1), "head")


def loss_of(c, w, t, dtype):
    """The loss on the batch of step t."""
    if "sources" in c:
        x = 2 * generate(1000 + 2 * t, (c["batch"], c["sources"], c["features"]))
        y = (1.5 * (generate(1001 + 2 * t, (c["batch"], c["sources"])).double() + 1)).long()
        return F.cross_entropy(forward(c, w, x.to(dtype)).flatten(0, 1), y.flatten())
    if "individual" in c:
        x = 2 * generate(1000 + 2 * t, (c["batch"], c["channels"], c["context"]))
        y = 2 * generate(1001 + 2 * t, (c["batch"], c["channels"], c["output"]))
        return F.mse_loss(forward(c, w, x.to(dtype)), y.to(dtype))
    b = c["batch"] * c["channels"]
    x, y = 2 * generate(1000 + 2 * t, (b, c["context"])), 2 * generate(1001 + 2 * t, (b, c["output"]))
    return F.mse_loss(forward(c, w, x.to(dtype)), y.to(dtype))


def train(c, params, dtype):
    """Losses, gradient norms, gradients of the first step and weights after the last."""
    w = {name: (generate(s, shape) * scale + offset).to(dtype).requires_grad_()
         for s, (name, shape, scale, offset) in enumerate(params)}
    optim = torch.optim.AdamW(w.values(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms, first = [], [], None
    for t in range(STEPS):
        loss = loss_of(c, w, t, dtype)
        optim.zero_grad()
        loss.backward()
        first = first or {name: p.grad.clone() for name, p in w.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), 1.0).item())
        optim.step()
        losses.append(loss.item())
    return losses, norms, first, {name: p.detach() for name, p in w.items()}


def yardstick(what, difference):
    return {f"f32_{what}_max": difference.abs().max().item(), f"f32_{what}_rms": difference.square().mean().sqrt().item()}


def make(name):
    if name == "cross":
        c = CROSS
    elif name.startswith("nlinear"):
        c = NLINEAR | {"individual": name.endswith("individual")}
    else:
        c = dict(zip(KEYS, CONFIGS[name]))
    params = describe(c)
    losses, norms, grads, weights = train(c, params, torch.float64)
    losses32, norms32, grads32, weights32 = train(c, params, torch.float32)
    tensors = {"losses": torch.tensor(losses, dtype=torch.float64), "grad_norms": torch.tensor(norms, dtype=torch.float64)}
    entries = []
    for s, (key, shape, scale, offset) in enumerate(params):
        g, w = grads[key], weights[key]
        stride = STRIDE if w.numel() > WHOLE else 1
        tensors[f"grad/{key}"] = g.flatten()[::stride].float()
        tensors[f"weight/{key}"] = w.flatten()[::stride].float()
        entries.append(dict(
            name=key, shape=shape, stream=s, scale=scale, offset=offset, stride=stride,
            sum=w.sum().item(), sum_sq=w.square().sum().item(),
            grad_sum=g.sum().item(), grad_sum_sq=g.square().sum().item(),
            **yardstick("weight", weights32[key] - w), **yardstick("grad", grads32[key] - g),
        ))
    about = {"config": c, "params": entries, "f32_losses": losses32, "f32_grad_norms": norms32}
    path = Path(__file__).with_name(f"steps_{name}.safetensors")
    save_file(tensors, path, {"steps": json.dumps(about, separators=(",", ":"))})
    count = sum(math.prod(p[1]) for p in params)
    print(f"{path.name}: {count} parameters, losses {losses}, norms {norms}, {path.stat().st_size} bytes")
    print(f"  f32: losses {losses32}, norms {norms32}")


if __name__ == "__main__":
    for name in sys.argv[1:] or [*CONFIGS, "cross", "nlinear", "nlinear_individual"]:
        make(name)
