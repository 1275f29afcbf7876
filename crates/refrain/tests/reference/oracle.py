"""What each operation computes, in PyTorch float64, and how a case is written down.

`make.py` beside this file lists the cases; its head describes the file format.
"""

import json
import math
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

# Raised by a variance whose result is empty.
warnings.filterwarnings("ignore", message=".*degrees of freedom.*")

# ---- Inputs -------------------------------------------------------------------------------------
# A sampler is a function of a NumPy generator, so that a case draws from a generator seeded with
# its own name and no case changes when another is added.


def representable(x):
    """Rounds to bf16 and keeps |x| >= 2^-10: exact in f64, f32, f16 and bf16 alike."""
    x = torch.as_tensor(x, dtype=torch.float64).to(torch.bfloat16).to(torch.float64)
    tiny = 2.0**-10
    return torch.where((x != 0) & (x.abs() < tiny), torch.where(x < 0, -tiny, tiny), x)


def normal(*shape, mean=0.0, std=1.0):
    return lambda rng: representable(rng.standard_normal(shape) * std + mean)


def uniform(low, high, *shape):
    return lambda rng: representable(rng.uniform(low, high, shape))


def away_from_zero(low, high, *shape):
    """Either sign, low <= |x| <= high."""
    return lambda rng: representable(rng.uniform(low, high, shape) * rng.choice([-1.0, 1.0], shape))


def distinct(*shape, odd=False):
    """A permutation of different multiples of 1/32; the `odd` ones never equal the others."""

    def sample(rng):
        n = math.prod(shape)
        k = rng.permutation(n) - n // 2
        return representable(np.asarray((2 * k + odd) / 64.0).reshape(shape))

    return sample


def few(*shape, values=(-1.0, -0.5, 0.0, 0.5, 1.0)):
    """Few different values, so that equal ones meet."""
    return lambda rng: torch.as_tensor(np.asarray(rng.choice(values, shape)), dtype=torch.float64)


def ids(high, *shape):
    return lambda rng: torch.as_tensor(np.asarray(rng.integers(0, high, shape)), dtype=torch.int64)


def flags(*shape):
    return lambda rng: torch.as_tensor(np.asarray(rng.integers(0, 2, shape))).bool()


def const(values, dtype=torch.float64):
    return lambda rng: torch.tensor(values, dtype=dtype)


# ---- Operations ---------------------------------------------------------------------------------


def binary(f):
    def op(x, y=None, scalar=None, reverse=False):
        if y is None:
            y = torch.tensor(scalar, dtype=x.dtype)
            x, y = (y, x) if reverse else (x, y)
        return f(x, y)

    return op


def reduction(f):
    """Reduces over `axes` (null: all of them)."""

    def op(x, axes, keepdim, **attrs):
        dims = tuple(range(x.dim())) if axes is None else tuple(axes)
        return f(x, dims, keepdim, **attrs) if dims else f(x[None], (0,), False, **attrs)

    return op


def arg_reduction(f):
    """First position of the extreme in the row-major flattening of the reduced axes."""

    def op(x, axes, keepdim):
        axes = sorted(range(x.dim()) if axes is None else (a % x.dim() for a in axes))
        kept = [a for a in range(x.dim()) if a not in axes]
        count = math.prod(x.shape[a] for a in axes)
        flat = x.detach().permute(*kept, *axes).reshape(*(x.shape[a] for a in kept), count)
        shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdim or a not in axes]
        return torch.as_tensor(np.asarray(f(flat.numpy(), axis=-1)), dtype=torch.int64).reshape(shape)

    return op


def layer_norm(x, weight=None, bias=None, *, normalized_shape, eps):
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


def batch_norm(x, mean, var, weight=None, bias=None, *, training, momentum, eps):
    mean, var = mean.clone(), var.clone()
    y = F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return (y, mean, var) if training else y


ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def linear(x, weight, *rest, bias, residual, activation):
    y = ACTIVATIONS[activation](F.linear(x, weight, rest[0] if bias else None))
    return y + rest[-1] if residual else y


def gru(x, weight, bias, first):
    """By the layer of PyTorch: the input's part of the gates is its input, with the unit matrix as its weight."""
    if x.shape[0] == 0:
        return first[:, None].expand(-1, x.shape[1], -1) + 0 * (x.sum() + weight.sum() + bias.sum())
    gates, hidden = weight.shape
    layer = torch.nn.GRU(gates, hidden, batch_first=True, dtype=x.dtype)
    parameters = {"weight_ih_l0": torch.eye(gates, dtype=x.dtype), "weight_hh_l0": weight,
                  "bias_ih_l0": torch.zeros(gates, dtype=x.dtype), "bias_hh_l0": bias}
    return torch.func.functional_call(layer, parameters, (x.contiguous(), first[None].contiguous()))[0]


def pad(x, *, padding, value):
    return F.pad(x, [n for before_after in reversed(padding) for n in before_after], value=value)


def pad_mode(x, *, padding, mode):
    # PyTorch takes these for the last axes only.
    while padding[0] == [0, 0]:
        padding = padding[1:]
    return F.pad(x, [n for before_after in reversed(padding) for n in before_after], mode=mode)


def product(x, dims, keepdim):
    for dim in sorted(d % x.dim() for d in dims)[::-1]:
        x = x.prod(dim, keepdim)
    return x


def sdpa_with(q, k, v, mask, *, kind, causal, past):
    """A mask by its kind: "bool" (true where a query sees a key), "float" (added to the scores), or "lengths" of padded sequences."""
    queries, keys = q.shape[-2], k.shape[-2]
    if kind == "lengths":
        mask = (torch.arange(keys) < mask[:, None])[:, None, None]
    if kind != "float":
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    if causal:
        hidden = torch.arange(keys) > torch.arange(queries)[:, None] + past
        mask = mask + torch.zeros(queries, keys, dtype=q.dtype).masked_fill(hidden, -torch.inf)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask
    torch.testing.assert_close(y, scores.softmax(-1) @ v)
    return y


def sdpa(q, k, v, *, causal, scale=None):
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    torch.testing.assert_close(y, scores.softmax(-1) @ v)
    return y


def hadamard(x):
    h = torch.ones(1, 1, dtype=x.dtype)
    while h.shape[0] < x.shape[-1]:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return x @ h / x.shape[-1] ** 0.5


def quantile_loss(prediction, target, *, q, reduction="mean"):
    error = target[..., None] - prediction
    q = torch.tensor(q, dtype=prediction.dtype)
    losses = torch.maximum(q * error, (q - 1) * error)
    return {"mean": losses.mean, "sum": losses.sum, "none": losses.clone}[reduction]()


def cross_entropy_with(logits, ids, weights=None, *, label_smoothing, ignore_index, reduction):
    ignore = -1 if ignore_index is None else ignore_index
    return F.cross_entropy(logits, ids, weights, ignore_index=ignore, reduction=reduction, label_smoothing=label_smoothing)


class Digamma(torch.autograd.Function):
    """torch.digamma, with its derivative to the last digits: torch.polygamma(1, x) has about ten in float64."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return torch.digamma(x)

    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        terms = sum(1 / (x + k) ** 2 for k in range(64))
        far = x + 64
        series = 1 / far + 1 / (2 * far**2) + 1 / (6 * far**3) - 1 / (30 * far**5) + 1 / (42 * far**7)
        return gradient * (terms + series)


CAST = {"i64": torch.int64, "i32": torch.int32, "bool": torch.bool, "f64": torch.float64}

UNARY = {
    **{n: getattr(torch, n) for n in (
        "neg abs sign exp exp2 log log2 log10 log1p expm1 sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh asinh acosh "
        "atanh tanh sigmoid relu erf erfc erfinv lgamma digamma floor ceil round trunc".split()
    )},
    "digamma": Digamma.apply,
    "gelu": F.gelu,
    "silu": F.silu,
    # Beyond its threshold PyTorch takes x for it, which is exact from here on.
    "softplus": lambda x: F.softplus(x, threshold=100.0),
    "log_sigmoid": F.logsigmoid,
    **{n: getattr(F, n) for n in "mish hardswish selu".split()},
    # The gradient of PyTorch's own has a sixth in f32.
    "hardsigmoid": lambda x: torch.clamp(x + 3, 0, 6) / 6,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    **{n: getattr(torch, n) for n in "isnan isinf isfinite".split()},
    "nan_to_num": lambda x: torch.nan_to_num(x, 0.5, 8.0, -16.0),
    "clamp": lambda x, min=None, max=None: torch.clamp(x, min, max),
}
BINARY = {n: binary(getattr(torch, n)) for n in (
    "add sub mul div remainder pow minimum maximum atan2 hypot logaddexp".split()
)}
COMPARE = {n: binary(getattr(torch, n)) for n in "eq ne lt le gt ge".split()}
LOGICAL = {f"logical_{n}": getattr(torch, f"logical_{n}") for n in "and or xor not".split()}


def norm(x, dims, keepdim, p):
    return torch.linalg.vector_norm(x, float(p), dims, keepdim)


def convolution(name):
    def op(x, weight, *bias, **attrs):
        return getattr(F, name)(x, weight, *bias, **attrs)

    return op


def linear_recurrence(x, decay, before=None, *, axis):
    decay, rows = decay.expand(x.shape), []
    state = torch.zeros_like(x.select(axis, 0)) if before is None and x.shape[axis] else before
    for t in range(x.shape[axis]):
        state = decay.select(axis, t) * state + x.select(axis, t)
        rows.append(state)
    return torch.stack(rows, axis) if rows else x + decay


def scatter(x, index, source, axis):
    """The last entry that names a place wins; the others get no gradient."""
    size, rows = x.shape[axis], index.shape[axis]
    x, index, source = (t.movedim(axis, 0) for t in (x, index, source))
    for r in range(rows):
        row = tuple(slice(0, n) for n in index.shape[1:])
        chosen = torch.arange(size).reshape(-1, *[1] * (x.dim() - 1)) == index[r]
        part = torch.where(chosen, source[r][row], x[(slice(None), *row)])
        full = x.clone()
        full[(slice(None), *row)] = part
        x = full
    return x.movedim(0, axis)


REDUCE = {
    "logsumexp": reduction(torch.logsumexp),
    "norm": reduction(norm),
    "sum": reduction(torch.sum),
    "mean": reduction(torch.mean),
    "var": reduction(lambda x, dims, keepdim, correction: torch.var(x, dims, correction=correction, keepdim=keepdim)),
    "std": reduction(lambda x, dims, keepdim, correction: torch.std(x, dims, correction=correction, keepdim=keepdim)),
    "prod": reduction(product),
    "any": reduction(lambda x, dims, keepdim: torch.any(x.detach(), dims, keepdim)),
    "all": reduction(lambda x, dims, keepdim: torch.all(x.detach(), dims, keepdim)),
    "max": reduction(torch.amax),
    "min": reduction(torch.amin),
    "argmax": arg_reduction(np.argmax),
    "argmin": arg_reduction(np.argmin),
}
OPS = {
    **UNARY, **BINARY, **COMPARE, **LOGICAL, **REDUCE,
    "where": torch.where,
    "cast": lambda x, dtype: x.to(CAST[dtype]),
    "softmax": lambda x, axis: torch.softmax(x, axis),
    "log_softmax": lambda x, axis: torch.log_softmax(x, axis),
    "layer_norm": layer_norm,
    "rms_norm": lambda x, weight=None, *, normalized_shape, eps: F.rms_norm(x, normalized_shape, weight, eps),
    "batch_norm": batch_norm,
    "l2_normalize": lambda x, axis, eps: F.normalize(x, dim=axis, eps=eps),
    "qk_norm": lambda x, t, eps: torch.stack(
        [F.normalize(x.select(-3, 0), dim=-1, eps=eps) * t[:, None], F.normalize(x.select(-3, 1), dim=-1, eps=eps),
         x.select(-3, 2)], -3),
    "matmul": torch.matmul,
    "einsum": lambda *xs, equation: torch.einsum(equation, *xs),
    "eye": lambda x, n: torch.eye(n, dtype=x.dtype),
    "linspace": lambda x, start, end, count: torch.linspace(start, end, count, dtype=x.dtype),
    "linear": linear,
    "gru": gru,
    "concat": lambda *xs, axis: torch.cat(xs, axis),
    "stack": lambda *xs, axis: torch.stack(xs, axis),
    "repeat": lambda x, repeats: x.repeat(repeats),
    "pad": pad,
    "pad_mode": pad_mode,
    "interpolate": lambda x, size, mode, align_corners: F.interpolate(x, size, mode=mode, align_corners=align_corners),
    "adaptive_avg_pool1d": F.adaptive_avg_pool1d,
    "adaptive_avg_pool2d": F.adaptive_avg_pool2d,
    "quantile": lambda x, q, axis: torch.quantile(x, q, axis),
    "median": lambda x, axis: torch.median(x, axis)[0],
    "gather": lambda x, index, axis: torch.gather(x, axis, index),
    "index_select": lambda x, index, axis: torch.index_select(x, axis, index),
    "scatter_add": lambda x, index, source, axis: torch.scatter_add(x, axis, index, source),
    "one_hot": lambda x, num_classes: F.one_hot(x, num_classes),
    "embedding": F.embedding,
    "sdpa": sdpa,
    "sdpa_with": sdpa_with,
    "hadamard": hadamard,
    "cumsum": lambda x, axis: torch.cumsum(x, axis),
    "cumprod": lambda x, axis: torch.cumprod(x, axis),
    "linear_recurrence": linear_recurrence,
    "flip": lambda x, axes: x.flip(axes),
    "roll": lambda x, shifts, axes: x.roll(shifts, axes),
    "tril": lambda x, diagonal: x.tril(diagonal),
    "triu": lambda x, diagonal: x.triu(diagonal),
    **{name: convolution(name) for name in ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d")},
    "max_pool1d": lambda x, kernel, stride, padding: F.max_pool1d(x, kernel, stride, padding),
    "max_pool2d": lambda x, kernel, stride, padding: F.max_pool2d(x, kernel, stride, padding),
    "avg_pool1d": lambda x, kernel, stride, padding, all: F.avg_pool1d(x, kernel, stride, padding, False, all),
    "avg_pool2d": lambda x, kernel, stride, padding, all: F.avg_pool2d(x, kernel, stride, padding, False, all),
    "masked_fill": lambda x, mask, value: x.masked_fill(mask, value),
    "scatter": scatter,
    "sort": lambda x, axis, descending: tuple(torch.sort(x, dim=axis, descending=descending, stable=True)),
    "argsort": lambda x, axis, descending: torch.sort(x.detach(), dim=axis, descending=descending, stable=True)[1],
    "topk": lambda x, k, axis, largest: tuple(torch.topk(x, k, axis, largest, True)),
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "huber_loss": lambda p, t, delta: F.huber_loss(p, t, delta=delta),
    "quantile_loss": quantile_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "kl_div": lambda log_q, p: F.kl_div(log_q, p, reduction="batchmean"),
    "mse_loss_reduced": F.mse_loss,
    "l1_loss_reduced": F.l1_loss,
    "huber_loss_reduced": F.huber_loss,
    "quantile_loss_reduced": quantile_loss,
    "bce_with_logits_reduced": F.binary_cross_entropy_with_logits,
    "kl_div_reduced": F.kl_div,
    "cosine_similarity": lambda a, b, axis, eps: F.cosine_similarity(a, b, axis, eps),
    "cross_entropy_with": cross_entropy_with,
    "cross_entropy": lambda p, t, label_smoothing: F.cross_entropy(p, t, label_smoothing=label_smoothing),
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, axis0, axis1: x.transpose(axis0, axis1),
    "permute": lambda x, axes: x.permute(axes),
    "narrow": lambda x, axis, start, length: x.narrow(axis, start, length),
    "broadcast_to": lambda x, shape: x.broadcast_to(shape),
    "squeeze": lambda x, axis: x.squeeze(axis),
    "unsqueeze": lambda x, axis: x.unsqueeze(axis),
    "flatten": lambda x, start_axis, end_axis: x.flatten(start_axis, end_axis),
    "unfold": lambda x, axis, size, step: x.unfold(axis, size, step),
    "unflatten": lambda x, axis, sizes: x.unflatten(axis, sizes),
    "unbind": lambda x, axis: x.unbind(axis),
    "split": lambda x, size, axis: x.split(size, axis),
    "split_with_sizes": lambda x, sizes, axis: x.split(sizes, axis),
    "chunk": lambda x, chunks, axis: x.chunk(chunks, axis),
}

# ---- Cases --------------------------------------------------------------------------------------


def view(base, layout):
    if layout is None:
        return base
    (kind, arguments), = layout.items()
    return {
        "permute": lambda: base.permute(arguments),
        "narrow": lambda: base.narrow(*arguments),
        "broadcast": lambda: base.broadcast_to(arguments),
    }[kind]()


class Family:
    """The cases of one file."""

    def __init__(self, name):
        self.name, self.cases, self.tensors = name, [], {}

    def add(self, op, suffix, samplers, attrs=None, layout=None, diff=None, tag=None):
        name, attrs = f"{op}_{suffix}", attrs or {}
        layout = layout or [None] * len(samplers)
        assert len(layout) == len(samplers) and all(c["name"] != name for c in self.cases), name
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        bases = [sample(rng) for sample in samplers]
        floats = [b.is_floating_point() for b in bases]
        diff = floats if diff is None else diff
        for base, d in zip(bases, diff):
            base.requires_grad_(d)
        outputs = OPS[op](*(view(b, l) for b, l in zip(bases, layout)), **attrs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        smooth = [o for o in outputs if o.requires_grad]
        if not smooth:
            diff = [False] * len(bases)
        cotangents = [normal(*o.shape)(rng) for o in smooth]
        if smooth:
            wanted = [b for b, d in zip(bases, diff) if d]
            gradients = torch.autograd.grad(smooth, wanted, cotangents)
            for i, g in zip((i for i, d in enumerate(diff) if d), gradients):
                self.keep(f"{name}/grad_in{i}", g)
        for i, base in enumerate(bases):
            self.keep(f"{name}/in{i}", base)
        for i, out in enumerate(outputs):
            self.keep(f"{name}/out{i}", out)
            if out.requires_grad:
                self.keep(f"{name}/grad_out{i}", cotangents.pop(0))
        self.cases.append(dict(
            name=name, op=op, attrs=attrs, inputs=len(bases), outputs=len(outputs),
            diff=diff, layout=layout, tag=tag,
        ))

    def keep(self, name, tensor):
        tensor = tensor.detach()
        tensor = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        self.tensors[name] = tensor.clone(memory_format=torch.contiguous_format)

    def save(self):
        path = Path(__file__).with_name(f"{self.name}.safetensors")
        save_file(self.tensors, path, {"cases": json.dumps(self.cases, separators=(",", ":"))})
        print(f"{path.name}: {len(self.cases)} cases, {path.stat().st_size} bytes")
