"""Makes the reference values that the tests of `refrain` compare against, with PyTorch in float64.

    pip install torch numpy safetensors && python make.py [FAMILY ...]

One safetensors file a family. Its metadata holds one key, `cases`: a JSON list with one entry a case,

    {"name": "softmax_axis1", "op": "softmax", "attrs": {"axis": 1}, "inputs": 1, "outputs": 1,
     "diff": [true], "layout": [null], "tag": null}

and for each case the tensors

    <name>/in<i>        stored base of input i
    <name>/out<i>       output i
    <name>/grad_out<i>  cotangent of output i; absent where output i is not differentiable
    <name>/grad_in<i>   gradient with respect to base i; there where diff[i] is true

F64 tensors are values, I64 class ids and positions, I32 only what `cast` makes, U8 truth values (0, 1).
Inputs are arranged by layout[i]: null for the base itself, otherwise a view of it:
{"permute": axes}, {"narrow": [axis, start, length]} or {"broadcast": shape}. `grad_in<i>` always has the
shape of the base. With diff all false a case is forward only. NaN stands for "is NaN"; a zero may have
either sign. Stored inputs and cotangents have at most eight significant bits and, unless zero or tagged
"wide", a magnitude of at least 2^-10: they are exact in f64, f32, f16 and bf16, so one case serves all
four. `tag` is null or
    "wide"     arguments or results so large or small that narrow dtypes overflow or underflow,
    "special"  infinities, NaN, signed zeros; forward only,
    "kink"     points without a derivative, with PyTorch's choice (below).

Operations are named as in PyTorch and take, in this order, inputs; and `attrs`:
    unary             x; gelu: approximate "none" (erf) or "tanh"; clamp: min and max, either may be missing; elu: alpha;
                      leaky_relu: negative_slope; isnan: to U8
                      round goes half to even; sign of NaN is as stored
    binary, compare   x, y, broadcast; or x alone with `scalar`: x op scalar, with `reverse` scalar op x
    logical_*         x, y (not: x), U8 to U8
    where             condition (U8), x, y, broadcast
    cast              dtype; to integers by truncation
    sum mean var std prod max min any all
                      axes (list, null for all), keepdim; var, std: correction (0 or 1); any, all: to U8
    logsumexp norm              axes, keepdim; norm: p, a number or "inf"
    argmax argmin     axes, keepdim; position in the row-major flattening of the reduced axes, first on ties
    softmax log_softmax         axis
    layer_norm        x, [weight, [bias]]; normalized_shape, eps          rms_norm: x, [weight]; the same
    batch_norm        x [N, C, ...], running mean, running variance, [weight, bias]; training, momentum, eps;
                      training gives y, new running mean, new running variance (the latter unbiased),
                      and normalises with the biased variance
    l2_normalize      x / max(||x||, eps) along axis
    qk_norm           x [.., 3, H, D], temperature [H]; x[.., 0, :, :] and x[.., 1, :, :] divided by max(||.||, eps) along
                      the last axis, the former times temperature
    matmul            as torch.matmul, vectors included
    einsum            any number of inputs; equation
    eye linspace      x, which only has the dtype; n; start, end, count
    linear            x, weight [out, in], [bias], [residual]; bias, residual: whether these are there;
                      activation none|relu|gelu|gelu_tanh|silu: activation(x W^T + b) + residual
    gru               x W_ih^T + b_ih [B, T, 3 H], weight_hh [3 H, H], bias_hh [3 H], h0 [B, H]
    concat stack      any number of inputs; axis                          repeat: repeats, one an axis
    pad               padding: [before, after] for every axis; value              pad_mode: the same; mode
    interpolate       size, mode and align_corners as in PyTorch (null where the mode has none)
    adaptive_avg_pool*          output_size
    quantile median   axis; quantile: q
    gather index_select scatter_add      x, index, [source]; axis         one_hot: num_classes, I64 to I64
    embedding         ids, weight
    cumsum cumprod    axis
    linear_recurrence x, decay, [what is before, without the axis]; axis; y[t] = decay[t] y[t - 1] + x[t]
    flip roll         axes, lists; roll: shifts, one an axis
    tril triu         diagonal
    conv1d conv2d     x, weight, [bias]; stride, padding, dilation, groups: numbers, or lists for two axes
    conv_transpose*   the same, and output_padding
    max_pool* avg_pool*         x; kernel, stride, padding; avg_pool*: all, whether the padding counts
    masked_fill       x, mask (U8); value
    scatter           x, index, source; axis; the last entry that names a place wins
    sort argsort      axis, descending; stable; sort gives values and positions
    topk              k, axis, largest; values and positions, in order
    sdpa              q [B, H, Nq, D], k and v [B, H, Nk, D]; causal, scale (missing: 1/sqrt(D))
    sdpa_with         q, k, v and a mask; kind: "bool" (U8), "float" (added to the scores) or "lengths" (I64 [B]); causal; past:
                      the keys before the first query
    hadamard          last axis times the Sylvester matrix / sqrt(n)
    *_loss            prediction, target; mean over all elements. huber_loss: delta (not divided by it);
                      quantile_loss: prediction [..., Q], target [...], q: list of Q; with e = target -
                      prediction, max(q e, (q - 1) e)
    *_reduced         the same losses; reduction: "sum" or "none"
    cross_entropy     logits [N, C], ids [N]; label_smoothing
    cross_entropy_with          logits, ids, [weights [C]]; label_smoothing, ignore_index or null, reduction as in PyTorch
    bce_with_logits   logits, targets; the mean
    kl_div            logarithms, probabilities; "batchmean"       cosine_similarity: a, b; axis, eps
    shapes            named and parametrised as the methods; several outputs for split and chunk

Kinks as PyTorch takes them: abs, sign, relu and l1_loss give 0 at 0; floor, ceil, round and sign give 0
everywhere; clamp gives 0 at its bounds; minimum and maximum give half to each of two equal
operands; max and min over axes share evenly among equal extremes; l2_normalize below eps is x / eps.
"""

import sys

import torch

from oracle import (
    ACTIVATIONS, COMPARE, Family, UNARY, away_from_zero, const, distinct, few, flags, ids, normal, uniform,
)

NAN, INF = float("nan"), float("inf")
SHAPES = {"3d": (3, 5, 7), "one": (1,), "empty": (2, 0, 3), "scalar": ()}
PERMUTE, NARROW = {"permute": [2, 0, 1]}, {"narrow": [1, 1, 3]}


def unary(f):
    def domain(op):
        if op == "log1p":
            return lambda *s: uniform(-0.75, 4.0, *s)
        if op in ("log", "log2", "log10", "sqrt", "rsqrt"):
            return lambda *s: uniform(0.125, 4.0, *s)
        if op in ("tan", "asin", "acos", "atanh", "erfinv"):
            return lambda *s: uniform(-0.875, 0.875, *s)
        if op == "acosh":
            return lambda *s: uniform(1.125, 6.0, *s)
        if op in ("lgamma", "digamma"):
            return lambda *s: uniform(0.125, 12.0, *s)
        if op in ("reciprocal", "relu", "abs", "sign", "elu", "leaky_relu"):
            return lambda *s: away_from_zero(0.125, 3.0, *s)
        if op in ("floor", "ceil", "round", "trunc", "clamp"):
            return lambda *s: distinct(*s, odd=True)
        return lambda *s: normal(*s, std=1.5)

    variants = [(op, {}, op) for op in UNARY if op not in ("gelu", "clamp", "elu", "leaky_relu")]
    variants += [("elu", {"alpha": 0.3}, "elu"), ("leaky_relu", {"negative_slope": 0.01}, "leaky_relu")]
    variants += [("gelu", {"approximate": a}, f"gelu {a}") for a in ("none", "tanh")]
    variants += [("clamp", a, f"clamp {'_'.join(a)}") for a in ({"min": -0.75, "max": 0.5}, {"min": 0.0}, {"max": 0.25})]
    for op, attrs, label in variants:
        sample, prefix = domain(op), "".join(f"{w}_" for w in label.split()[1:])
        for name, shape in SHAPES.items():
            f.add(op, prefix + name, [sample(*shape)], attrs)
        f.add(op, prefix + "permuted", [sample(3, 4, 5)], attrs, [PERMUTE])
        f.add(op, prefix + "narrowed", [sample(2, 5, 3)], attrs, [NARROW])
        f.add(op, prefix + "broadcast", [sample(1, 4, 1)], attrs, [{"broadcast": [3, 4, 2]}])

    wide = const([-80.0, -24.0, -12.0, -8.0, -6.0, -4.0, 4.0, 6.0, 8.0, 12.0, 24.0, 80.0])
    for op in ("exp exp2 expm1 tanh sigmoid erf erfc silu softplus sin cos tan atan sinh cosh asinh log_sigmoid mish "
               "hardswish hardsigmoid selu").split():
        f.add(op, "wide", [wide], tag="wide")
    for approximate in ("none", "tanh"):
        f.add("gelu", f"{approximate}_wide", [wide], {"approximate": approximate}, tag="wide")
    positive = const([2.0**k for k in (-60, -24, -14, -3, 0, 5, 15, 60)])
    for op in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "atan", "asinh"):
        f.add(op, "wide" if op.startswith(("log", "sqrt", "rsqrt", "rec")) else "powers", [positive], tag="wide")
    for op in ("erf", "erfc"):
        f.add(op, "small", [const([0.0, 2.0**-10, -(2.0**-7), 0.0625, 0.5, -0.875, 1.5, 2.5, -3.5])])
    small = const([0.0, 2.0**-10, -(2.0**-9), 2.0**-7, -(2.0**-5), 0.125, -0.25, 0.5, 2.0, 2.5])
    for op in ("log1p", "expm1", "tan", "atan", "sinh", "asinh", "mish"):
        f.add(op, "small", [small])
    inside = const([0.0, 2.0**-10, -(2.0**-9), 2.0**-7, -(2.0**-5), 0.125, -0.25, 0.5, -0.75, 0.9375, -0.9921875])
    for op in ("asin", "acos", "atanh", "erfinv"):
        f.add(op, "inside", [inside])
    # Near zeros, beyond the series, and by reflection.
    gamma = const([1.0, 1.5, 2.0, 0.0625, 9.5, 10.5, 40.0, 100.0, -0.5, -1.25, -2.75, -4.5])
    for op in ("lgamma", "digamma"):
        f.add(op, "chosen", [gamma])
    halves = const([-3.5, -2.5, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 4.0])
    for op in ("floor", "ceil", "round", "trunc"):
        f.add(op, "halves", [halves], tag="kink")
    for op in ("abs", "sign", "relu"):
        f.add(op, "zero", [const([-1.0, 0.0, 2.0])], tag="kink")
    f.add("elu", "wide", [wide], {"alpha": 0.75}, tag="wide")
    f.add("elu", "zero", [const([-1.0, 0.0, 2.0])], {"alpha": 0.75}, tag="kink")
    f.add("leaky_relu", "zero", [const([-1.0, 0.0, 2.0])], {"negative_slope": 0.25}, tag="kink")
    f.add("clamp", "bounds", [const([-1.0, -0.75, 0.0, 0.5, 1.0])], {"min": -0.75, "max": 0.5}, tag="kink")

    special = const([0.0, -0.0, INF, -INF, NAN])
    for op in ("neg abs sign exp exp2 log log2 log10 log1p expm1 sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh "
               "cosh asinh acosh atanh tanh sigmoid relu erf erfc erfinv lgamma digamma floor ceil round trunc softplus log_sigmoid "
               "isnan isinf isfinite nan_to_num").split():
        f.add(op, "special", [special], diff=[False], tag="special")
    f.add("elu", "special", [special], {"alpha": 0.75}, diff=[False], tag="special")
    f.add("leaky_relu", "special", [special], {"negative_slope": 0.25}, diff=[False], tag="special")
    f.add("clamp", "special", [special], {"min": -0.5, "max": 0.5}, diff=[False], tag="special")


BROADCAST = {
    "same": ((3, 5, 7), (3, 5, 7)),
    "middle": ((3, 1, 5), (4, 1)),
    "left": ((1, 4, 1), (3, 4, 6)),
    "row": ((4, 7), (7,)),
    "column": ((4, 7), (4, 1)),
    "scalar": ((3, 5), ()),
    "both": ((3, 1), (1, 5)),
    "empty": ((2, 0, 3), (1, 3)),
    "empty_by_one": ((1, 3), (0, 3)),
}


def binary(f):
    first = {"pow": lambda *s: uniform(0.25, 3.0, *s)}
    second = {"div": lambda *s: away_from_zero(0.25, 3.0, *s)}
    second["remainder"] = second["div"]
    for op in "add sub mul div remainder pow minimum maximum atan2 hypot logaddexp".split():
        # Even against odd multiples of 1/64: never equal.
        a = (lambda *s: distinct(*s)) if op in ("minimum", "maximum") else first.get(op, normal)
        b = (lambda *s: distinct(*s, odd=True)) if op in ("minimum", "maximum") else second.get(op, normal)
        for name, (x, y) in BROADCAST.items():
            f.add(op, name, [a(*x), b(*y)])
        f.add(op, "permuted", [a(3, 4, 5), b(5, 3, 4)], layout=[PERMUTE, None])
        f.add(op, "both_permuted", [a(3, 4), b(3, 4)], layout=[{"permute": [1, 0]}] * 2)
        f.add(op, "narrowed", [a(2, 5, 3), b(2, 3, 5)], layout=[NARROW, {"narrow": [2, 2, 3]}])
        f.add(op, "broadcast_view", [a(1, 4, 1), b(3, 1, 2)],
              layout=[{"broadcast": [3, 4, 2]}, {"broadcast": [3, 4, 2]}])
    for op in "add sub mul div minimum maximum".split():
        for reverse in (False, True):
            suffix = "reverse" if reverse else "by"
            sample = away_from_zero(0.125, 3.0, 3, 7)
            f.add(op, f"scalar_{suffix}", [sample], {"scalar": 0.0625 if op in ("minimum", "maximum") else -1.5,
                                                     "reverse": reverse})
    for op in ("remainder", "atan2", "hypot", "logaddexp"):
        f.add(op, "scalar_by", [away_from_zero(0.125, 3.0, 3, 7)], {"scalar": -0.75, "reverse": False})
    f.add("remainder", "far", [const([80.0, -80.0, 2.0**100, -(2.0**15), 2.0**-60]),
                               const([0.75, 0.75, 3.0, 2.0**-40, 2.0])], tag="wide")
    for exponent in (2.0, 3.0, -1.0, -2.0):
        f.add("pow", f"scalar_by_{exponent:g}", [away_from_zero(0.25, 2.0, 3, 7)], {"scalar": exponent, "reverse": False})
    for exponent in (0.5, 1.5, -0.5):
        f.add("pow", f"scalar_by_{exponent:g}", [uniform(0.25, 3.0, 3, 7)], {"scalar": exponent, "reverse": False})
    f.add("pow", "scalar_reverse", [normal(3, 7)], {"scalar": 1.75, "reverse": True})
    f.add("mul", "scalar_empty", [normal(2, 0, 3)], {"scalar": 3.0, "reverse": False})
    f.add("sub", "scalar_reverse_permuted", [normal(3, 4, 5)], {"scalar": 1.0, "reverse": True}, [PERMUTE])
    for op in ("minimum", "maximum"):
        f.add(op, "equal", [few(4, 5), few(4, 5)], tag="kink")
    a, b = [1.0, -1.0, 0.0, INF, NAN, 1.0, INF, -0.0], [0.0, 0.0, 0.0, INF, 1.0, NAN, -INF, 0.0]
    for op in "add sub mul div minimum maximum atan2 hypot logaddexp".split():
        f.add(op, "special", [const(a), const(b)], diff=[False, False], tag="special")

    for op in COMPARE:
        for name in ("same", "middle", "scalar", "empty"):
            x, y = BROADCAST[name]
            f.add(op, name, [few(*x), few(*y)])
        f.add(op, "permuted", [few(3, 4, 5), few(5, 3, 4)], layout=[PERMUTE, None])
        f.add(op, "integers", [ids(3, 4, 5), ids(3, 5)])
        f.add(op, "scalar_by", [few(3, 7)], {"scalar": 0.5, "reverse": False})
        f.add(op, "scalar_reverse", [few(3, 7)], {"scalar": 0.5, "reverse": True})
        f.add(op, "special", [const(a), const(b)], tag="special")
    for op in ("logical_and", "logical_or", "logical_xor"):
        for name in ("same", "middle", "empty"):
            x, y = BROADCAST[name]
            f.add(op, name, [flags(*x), flags(*y)])
    f.add("logical_not", "3d", [flags(3, 5, 7)])
    f.add("logical_not", "permuted", [flags(3, 4, 5)], layout=[PERMUTE])
    for name, shapes in {
        "same": ((3, 5), (3, 5), (3, 5)), "broadcast": ((3, 1, 5), (4, 1), (3, 4, 5)),
        "condition_wider": ((3, 4, 5), (5,), ()), "empty": ((2, 0), (2, 1), (1, 1)),
    }.items():
        c, x, y = shapes
        f.add("where", name, [flags(*c), normal(*x), normal(*y)])
    f.add("where", "permuted", [flags(4, 3), normal(4, 3), normal(3, 4)],
          layout=[{"permute": [1, 0]}, {"permute": [1, 0]}, None])
    for dtype in ("i64", "i32"):
        f.add("cast", dtype, [const([-2.75, -1.0, -0.5, 0.0, 0.5, 1.75, 100.0])], {"dtype": dtype})
    f.add("cast", "bool", [const([-0.5, 0.0, 1.0, 2.0])], {"dtype": "bool"})
    f.add("cast", "from_i64", [ids(200, 3, 5)], {"dtype": "f64"})
    f.add("cast", "from_bool", [flags(3, 5)], {"dtype": "f64"})


def reduce(f):
    axes_of = {"3d": ((3, 5, 7), ([0], [1], [2], [-1], [0, 2], [1, 2], [0, 1], None)),
               "ones": ((4, 1, 6), ([1], [0, 1], [2], None)), "one": ((1,), ([0], None)), "scalar": ((), (None,))}
    kinds = [("sum", {}), ("mean", {}), ("var", {"correction": 0}), ("var", {"correction": 1}), ("max", {}), ("min", {})]
    for op, attrs in kinds:
        sample = (lambda *s: distinct(*s)) if op in ("max", "min") else normal
        prefix = "".join(f"{k}{v}_" for k, v in attrs.items())
        for name, (shape, lists) in axes_of.items():
            for axes in lists:
                n = torch.Size(shape if axes is None else [shape[a] for a in axes]).numel()
                if op == "var" and n <= attrs["correction"]:
                    continue
                label = "all" if axes is None else "_".join(f"{a}" for a in axes).replace("-", "m")
                for keepdim in (False, True):
                    f.add(op, f"{prefix}{name}_{label}{'_keepdim' if keepdim else ''}", [sample(*shape)],
                          dict(attrs, axes=axes, keepdim=keepdim))
        for axes in ([0], [1, 2], [2], None):
            label = "all" if axes is None else "_".join(map(str, axes))
            f.add(op, f"{prefix}permuted_{label}", [sample(3, 4, 5)], dict(attrs, axes=axes, keepdim=False), [PERMUTE])
        f.add(op, f"{prefix}narrowed", [sample(2, 5, 3)], dict(attrs, axes=[1], keepdim=False), [NARROW])
        f.add(op, f"{prefix}broadcast", [sample(3, 1)], dict(attrs, axes=[0], keepdim=False), [{"broadcast": [3, 4]}])
        f.add(op, f"{prefix}long", [sample(2, 127)], dict(attrs, axes=[1], keepdim=False))
        f.add(op, f"{prefix}empty_kept", [sample(2, 0, 3)], dict(attrs, axes=[0], keepdim=False))
    for op in ("sum", "mean"):
        f.add(op, "empty_reduced", [normal(2, 0, 3)], {"axes": [1], "keepdim": False})
        f.add(op, "empty_all", [normal(2, 0, 3)], {"axes": None, "keepdim": False})
    for op in ("max", "min"):
        for axes in ([0], [1], [0, 2], None):
            label = "all" if axes is None else "_".join(map(str, axes))
            f.add(op, f"ties_{label}", [few(3, 5, 4)], {"axes": axes, "keepdim": False}, tag="kink")
        f.add(op, "special", [const([[1.0, NAN, 2.0], [-INF, 0.0, INF], [-INF, -INF, -INF]])],
              {"axes": [1], "keepdim": False}, diff=[False], tag="special")
    for op, attrs in (("logsumexp", {}), ("norm", {"p": 2}), ("norm", {"p": 1}), ("norm", {"p": 3}), ("norm", {"p": "inf"})):
        prefix = "".join(f"{k}{v}_" for k, v in attrs.items())
        sample = away_from_zero(0.125, 3.0, 3, 5, 7)
        for axes in ([0], [1], [-1], [0, 2], None):
            label = "all" if axes is None else "_".join(f"{a}" for a in axes).replace("-", "m")
            f.add(op, f"{prefix}3d_{label}", [sample], dict(attrs, axes=axes, keepdim=False))
        f.add(op, f"{prefix}keepdim", [sample], dict(attrs, axes=[1], keepdim=True))
        f.add(op, f"{prefix}permuted", [distinct(3, 4, 5, odd=True)], dict(attrs, axes=[1], keepdim=False), [PERMUTE])
        f.add(op, f"{prefix}long", [distinct(2, 127, odd=True)], dict(attrs, axes=[1], keepdim=False))
        f.add(op, f"{prefix}empty", [normal(2, 0, 3)], dict(attrs, axes=[2], keepdim=False))
    f.add("logsumexp", "shifted", [normal(3, 6, mean=96.0, std=16.0)], {"axes": [1], "keepdim": False})
    f.add("logsumexp", "special", [const([[1.0, -INF, 0.5], [-INF, -INF, -INF], [INF, 0.0, INF], [NAN, 0.0, INF]])],
          {"axes": [1], "keepdim": False}, diff=[False], tag="special")
    f.add("norm", "p2_zero", [const([[0.0, 0.0], [3.0, -4.0]])], {"p": 2, "axes": [1], "keepdim": False}, tag="kink")
    three = ([0], [1], [-1], [0, 2], None)
    for axes in three:
        label = "all" if axes is None else "_".join(f"{a}" for a in axes).replace("-", "m")
        for correction in (0, 1):
            f.add("std", f"correction{correction}_3d_{label}", [normal(3, 4, 5)],
                  {"axes": axes, "keepdim": axes == [1], "correction": correction})
        f.add("prod", f"3d_{label}", [away_from_zero(0.75, 1.25, 3, 4, 5)], {"axes": axes, "keepdim": axes == [1]})
        for op in ("any", "all"):
            values = (0.0, 0.0, 0.0, 0.5) if op == "any" else (-1.0, 0.25, 0.5, 0.0)
            f.add(op, f"3d_{label}", [few(3, 4, 5, values=values)], {"axes": axes, "keepdim": axes == [1]})
    for op, attrs in (("std", {"correction": 1}), ("prod", {}), ("any", {}), ("all", {})):
        sample = (lambda *s: few(*s, values=(0.0, 0.0, 1.0))) if op in ("any", "all") else (lambda *s: away_from_zero(0.75, 1.25, *s))
        f.add(op, "permuted", [sample(3, 4, 5)], {**attrs, "axes": [1], "keepdim": False}, [PERMUTE])
        f.add(op, "narrowed", [sample(2, 5, 3)], {**attrs, "axes": [1], "keepdim": False}, [NARROW])
        f.add(op, "broadcast", [sample(3, 1)], {**attrs, "axes": [0], "keepdim": False}, [{"broadcast": [3, 4]}])
        f.add(op, "long", [sample(2, 67)], {**attrs, "axes": [1], "keepdim": False})
        f.add(op, "empty_kept", [sample(2, 0, 3)], {**attrs, "axes": [0], "keepdim": False})
    f.add("prod", "zeros", [const([[0.0, 2.0, 3.0, -1.5], [2.0, 0.0, 0.5, 0.0], [1.5, 2.0, 3.0, 0.5]])],
          {"axes": [1], "keepdim": False})
    f.add("prod", "one", [normal(4, 1, 6)], {"axes": [1], "keepdim": False})
    for op in ("prod", "any", "all"):
        f.add(op, "empty_reduced", [normal(2, 0, 3)], {"axes": [1], "keepdim": False})
    for op in ("any", "all"):
        f.add(op, "special", [const([[0.0, NAN], [-0.0, INF], [0.0, -0.0]])], {"axes": [1], "keepdim": False}, diff=[False],
              tag="special")
    for op in ("argmax", "argmin"):
        for axes in ([0], [1], [2], [-1], [0, 2], None):
            label = "all" if axes is None else "_".join(f"{a}" for a in axes).replace("-", "m")
            for keepdim in (False, True):
                f.add(op, f"3d_{label}{'_keepdim' if keepdim else ''}", [distinct(3, 5, 7)],
                      {"axes": axes, "keepdim": keepdim})
        f.add(op, "ties", [few(5, 9)], {"axes": [1], "keepdim": False})
        f.add(op, "ties_first_axis", [few(9, 5)], {"axes": [0], "keepdim": False})
        f.add(op, "permuted", [distinct(3, 4, 5)], {"axes": [1], "keepdim": False}, [PERMUTE])
        f.add(op, "one", [distinct(4, 1, 6)], {"axes": [1], "keepdim": False})
        f.add(op, "empty_kept", [distinct(2, 0, 3)], {"axes": [0], "keepdim": False})


def norm(f):
    for op in ("softmax", "log_softmax"):
        for axis in (0, 1, 2, -1):
            f.add(op, f"axis{axis}".replace("-", "m"), [normal(3, 5, 7, std=2.0)], {"axis": axis})
        f.add(op, "one", [normal(4, 1, 6)], {"axis": 1})
        f.add(op, "long", [normal(2, 131, std=3.0)], {"axis": 1})
        f.add(op, "empty", [normal(2, 0, 3)], {"axis": 2})
        f.add(op, "permuted", [normal(3, 4, 5)], {"axis": 2}, [PERMUTE])
        f.add(op, "permuted_first", [normal(3, 4, 5)], {"axis": 0}, [PERMUTE])
        f.add(op, "shifted", [normal(3, 6, mean=96.0, std=16.0)], {"axis": 1})
        f.add(op, "masked", [const([[1.0, -INF, 0.5], [-INF, -INF, 2.0]])], {"axis": 1}, diff=[False], tag="special")

    for op, most in (("layer_norm", 2), ("rms_norm", 1)):
        for affine in range(most + 1):
            rest = [normal(7, mean=1.0, std=0.5), normal(7, std=0.5)][:affine]
            attrs = {"normalized_shape": [7], "eps": 1e-5}
            suffix = ("plain", "weight", "affine")[affine]
            f.add(op, suffix, [normal(3, 5, 7, mean=0.5), *rest], attrs)
            f.add(op, f"{suffix}_2d", [normal(9, 7), *rest], attrs)
            f.add(op, f"{suffix}_permuted", [normal(7, 3, 4), *rest], attrs, [{"permute": [1, 2, 0]}] + [None] * affine)
            f.add(op, f"{suffix}_empty", [normal(0, 7), *rest], attrs)
        weights = [normal(5, 7, mean=1.0, std=0.5), normal(5, 7)][:most]
        f.add(op, "two_axes", [normal(3, 5, 7), *weights], {"normalized_shape": [5, 7], "eps": 1e-5})
        f.add(op, "width_one", [normal(4, 1), *[normal(1)] * most], {"normalized_shape": [1], "eps": 1e-5})
        f.add(op, "wide_row", [normal(2, 67, mean=2.0), *[normal(67, mean=1.0, std=0.25)] * most],
              {"normalized_shape": [67], "eps": 1e-5})
        f.add(op, "large_eps", [normal(4, 6), *[normal(6)] * most], {"normalized_shape": [6], "eps": 0.5})

    for name, shape in {"2d": (6, 3), "3d": (4, 3, 5), "4d": (2, 3, 4, 2)}.items():
        stats = [normal(3), uniform(0.5, 2.0, 3)]
        affine = [normal(3, mean=1.0, std=0.5), normal(3, std=0.5)]
        for training in (True, False):
            mode = "training" if training else "evaluation"
            attrs = {"training": training, "momentum": 0.125, "eps": 1e-5}
            f.add("batch_norm", f"{mode}_{name}", [normal(*shape, mean=0.5), *stats, *affine], attrs,
                  diff=[True, False, False, True, True])
            f.add("batch_norm", f"{mode}_{name}_plain", [normal(*shape, mean=0.5), *stats], attrs,
                  diff=[True, False, False])
    f.add("batch_norm", "training_permuted", [normal(4, 5, 3), normal(3), uniform(0.5, 2.0, 3), normal(3), normal(3)],
          {"training": True, "momentum": 0.25, "eps": 1e-3}, [{"permute": [0, 2, 1]}, None, None, None, None],
          diff=[True, False, False, True, True])

    for axis in (0, 1, 2, -1):
        f.add("l2_normalize", f"axis{axis}".replace("-", "m"), [normal(3, 5, 7)], {"axis": axis, "eps": 1e-12})
    f.add("l2_normalize", "permuted", [normal(3, 4, 5)], {"axis": 2, "eps": 1e-12}, [PERMUTE])
    f.add("l2_normalize", "one", [away_from_zero(0.5, 2.0, 4, 1)], {"axis": 1, "eps": 1e-12})
    f.add("l2_normalize", "empty", [normal(2, 0, 3)], {"axis": 2, "eps": 1e-12})
    f.add("l2_normalize", "below_eps", [const([[0.0, 0.0, 0.0], [0.25, -0.125, 0.0], [3.0, -4.0, 1.0]])],
          {"axis": 1, "eps": 0.5}, tag="kink")

    for name, shape in {"heads": (2, 5, 3, 4, 6), "wide": (3, 3, 2, 67), "one": (4, 3, 1, 1), "flat": (3, 2, 5)}.items():
        f.add("qk_norm", name, [normal(*shape), normal(shape[-2], mean=2.0)], {"eps": 1e-12})
    f.add("qk_norm", "permuted", [normal(3, 2, 5, 4), normal(2)], {"eps": 1e-12}, [{"permute": [3, 0, 1, 2]}, None])
    f.add("qk_norm", "empty", [normal(0, 3, 2, 4), normal(2)], {"eps": 1e-12})
    f.add("qk_norm", "below_eps", [const([[[[0.25, -0.125, 0.0]], [[3.0, -4.0, 1.0]], [[0.5, 0.0, 2.0]]]]), normal(1)],
          {"eps": 0.5}, tag="kink")


def matmul(f):
    for name, (x, y) in {
        "2d": ((5, 7), (7, 3)), "ones": ((1, 1), (1, 1)), "row": ((1, 9), (9, 4)), "column": ((6, 9), (9, 1)),
        "outer": ((5, 1), (1, 6)), "odd": ((17, 19), (19, 13)), "batched": ((3, 4, 5), (3, 5, 2)),
        "batched4": ((2, 3, 4, 5), (2, 3, 5, 3)), "broadcast_right": ((3, 4, 5), (5, 6)),
        "broadcast_left": ((4, 5), (3, 5, 2)), "broadcast_ones": ((2, 1, 3, 4), (5, 4, 2)),
        "broadcast_both": ((2, 1, 3, 4), (1, 3, 4, 2)), "vector_vector": ((7,), (7,)), "vector_matrix": ((5,), (5, 3)),
        "matrix_vector": ((3, 5), (5,)), "batch_vector": ((2, 3, 5), (5,)), "vector_batch": ((4,), (2, 4, 3)),
        "k_zero": ((3, 0), (0, 4)), "m_zero": ((0, 3), (3, 4)), "n_zero": ((3, 4), (4, 0)),
        "batch_zero": ((0, 3, 4), (0, 4, 2)), "k_one": ((2, 3, 1), (2, 1, 4)),
    }.items():
        f.add("matmul", name, [normal(*x), normal(*y)])
    swap, swap3 = {"permute": [1, 0]}, {"permute": [0, 2, 1]}
    f.add("matmul", "left_transposed", [normal(7, 5), normal(7, 3)], layout=[swap, None])
    f.add("matmul", "right_transposed", [normal(5, 7), normal(3, 7)], layout=[None, swap])
    f.add("matmul", "both_transposed", [normal(7, 5), normal(3, 7)], layout=[swap, swap])
    f.add("matmul", "batched_both_transposed", [normal(2, 5, 4), normal(2, 3, 5)], layout=[swap3, swap3])
    f.add("matmul", "heads", [normal(2, 5, 3, 4), normal(2, 6, 3, 4)],
          layout=[{"permute": [0, 2, 1, 3]}, {"permute": [0, 2, 3, 1]}])
    f.add("matmul", "batch_last", [normal(4, 5, 3), normal(5, 2, 3)], layout=[{"permute": [2, 0, 1]}] * 2)
    f.add("matmul", "narrowed", [normal(5, 9), normal(6, 8)], layout=[{"narrow": [1, 2, 6]}, {"narrow": [1, 3, 4]}])
    f.add("matmul", "narrowed_rows", [normal(8, 6), normal(9, 4)], layout=[{"narrow": [0, 1, 5]}, {"narrow": [0, 2, 6]}])
    f.add("matmul", "broadcast_view", [normal(1, 4, 5), normal(3, 5, 2)], layout=[{"broadcast": [3, 4, 5]}, None])
    f.add("matmul", "broadcast_row", [normal(1, 5), normal(5, 2)], layout=[{"broadcast": [4, 5]}, None])

    for name, (equation, *shapes) in {
        "product": ("ij,jk->ik", (3, 4), (4, 5)), "implicit": ("ij,jk", (3, 4), (4, 2)),
        "batched": ("bij,bjk->bik", (2, 3, 4), (2, 4, 3)), "outer": ("i,j->ij", (3,), (4,)),
        "dot": ("i,i->", (7,), (7,)), "sum": ("ijk->j", (2, 3, 4)), "transpose": ("ij->ji", (3, 4)), "trace": ("ii->", (4, 4)),
        "diagonal": ("bii->bi", (2, 3, 3)), "heads": ("bnhd,bmhd->bhnm", (2, 3, 2, 4), (2, 5, 2, 4)),
        "ellipsis": ("...ij,...jk->...ik", (2, 3, 4), (4, 2)), "elementwise": ("ij,ij->ij", (3, 4), (3, 4)),
        "three": ("bi,ij,bj->b", (3, 4), (4, 5), (3, 5)), "alone": ("ij,jkl->i", (3, 4), (4, 2, 3)),
        "empty": ("ij,jk->ik", (3, 0), (0, 4)),
    }.items():
        f.add("einsum", name, [normal(*s) for s in shapes], {"equation": equation})
    f.add("einsum", "permuted", [normal(4, 3), normal(5, 4)], {"equation": "ij,jk->ik"}, [swap, swap])
    for n in (1, 4):
        f.add("eye", f"{n}", [const([1.0])], {"n": n})
    for name, (start, end, count) in {"up": (0.0, 1.0, 7), "down": (3.0, -2.5, 8), "one": (0.1, 0.7, 1), "two": (-1.0, 1.0, 2),
                                      "none": (1.0, 2.0, 0), "thirds": (-0.1, 0.2, 10)}.items():
        f.add("linspace", name, [const([1.0])], {"start": start, "end": end, "count": count})

    for bias in (False, True):
        for residual in (False, True):
            for activation in ACTIVATIONS:
                inputs = [normal(6, 5), normal(7, 5), *[normal(7)] * bias, *[normal(6, 7)] * residual]
                suffix = "_".join([activation, *["bias"] * bias, *["residual"] * residual])
                f.add("linear", suffix, inputs, {"bias": bias, "residual": residual, "activation": activation})
    full = {"bias": True, "residual": True, "activation": "gelu_tanh"}
    f.add("linear", "3d", [normal(2, 3, 5), normal(4, 5), normal(4), normal(2, 3, 4)], full)
    f.add("linear", "4d", [normal(2, 3, 2, 5), normal(4, 5), normal(4), normal(2, 3, 2, 4)], full)
    f.add("linear", "1d", [normal(5), normal(4, 5), normal(4), normal(4)], full)
    f.add("linear", "one_output", [normal(6, 9), normal(1, 9), normal(1), normal(6, 1)], full)
    f.add("linear", "one_input", [normal(6, 1), normal(4, 1), normal(4), normal(6, 4)], full)
    f.add("linear", "empty", [normal(0, 5), normal(4, 5), normal(4), normal(0, 4)], full)
    f.add("linear", "x_permuted", [normal(2, 5, 3), normal(4, 5), normal(4), normal(2, 3, 4)], full,
          [{"permute": [0, 2, 1]}, None, None, None])
    f.add("linear", "weight_transposed", [normal(6, 5), normal(5, 4), normal(4), normal(6, 4)], full,
          [None, swap, None, None])
    f.add("linear", "residual_permuted", [normal(6, 5), normal(4, 5), normal(4), normal(4, 6)], full,
          [None, None, None, swap])
    for name, (batch, moments, hidden) in {
        "odd": (3, 4, 5), "one": (1, 1, 1), "even": (2, 3, 8), "one_moment": (4, 1, 3), "one_sequence": (1, 5, 6),
    }.items():
        f.add("gru", name, [normal(batch, moments, 3 * hidden), normal(3 * hidden, hidden, std=0.5), normal(3 * hidden, std=0.5),
                            normal(batch, hidden)])
    f.add("gru", "empty", [normal(0, 3, 6), normal(6, 2), normal(6), normal(0, 2)])
    f.add("gru", "permuted", [normal(4, 2, 9), normal(3, 9), normal(9), normal(3, 2)], None,
          [{"permute": [1, 0, 2]}, swap, None, swap])
    f.add("linear", "unfolded", [normal(6, 8), normal(4, 5), normal(4)], {"bias": True, "residual": False,
          "activation": "none"}, [{"narrow": [1, 2, 5]}, None, None])


def index(f):
    for axis, shapes in {0: [(2, 5), (3, 5), (1, 5)], 1: [(3, 2), (3, 4)], -1: [(2, 3, 4), (2, 3, 1)]}.items():
        suffix = f"axis{axis}".replace("-", "m")
        f.add("concat", suffix, [normal(*s) for s in shapes], {"axis": axis})
        f.add("stack", suffix, [normal(3, 4)] * 3, {"axis": axis})
    f.add("concat", "single", [normal(3, 4)], {"axis": 0})
    f.add("concat", "with_empty", [normal(2, 3), normal(0, 3), normal(1, 3)], {"axis": 0})
    f.add("concat", "permuted", [normal(3, 4), normal(4, 2)], {"axis": 1}, [{"permute": [1, 0]}, None])
    f.add("stack", "permuted", [normal(3, 4), normal(4, 3)], {"axis": 1}, [{"permute": [1, 0]}, None])
    f.add("stack", "scalars", [normal()] * 2, {"axis": 0})
    for name, (shape, repeats) in {"2d": ((2, 3), [3, 2]), "more_axes": ((2, 3), [2, 1, 2]), "ones": ((2, 3), [1, 1]),
                                   "one": ((1,), [5]), "none": ((2, 3), [0, 2])}.items():
        f.add("repeat", name, [normal(*shape)], {"repeats": repeats})
    f.add("repeat", "permuted", [normal(3, 4)], {"repeats": [2, 1]}, [{"permute": [1, 0]}])
    for name, (shape, padding, value) in {
        "last": ((3, 5), [[0, 0], [1, 2]], 0.0), "every": ((2, 3, 4), [[1, 0], [0, 2], [3, 1]], -1.5),
        "nothing": ((3, 4), [[0, 0], [0, 0]], 1.0), "empty": ((2, 0), [[0, 0], [1, 1]], 2.5),
    }.items():
        f.add("pad", name, [normal(*shape)], {"padding": padding, "value": value})
    f.add("pad", "permuted", [normal(3, 4)], {"padding": [[1, 1], [0, 2]], "value": 0.5}, [{"permute": [1, 0]}])

    f.add("gather", "axis0", [normal(4, 5), ids(4, 3, 5)], {"axis": 0})
    f.add("gather", "axis1", [normal(4, 5), ids(5, 4, 7)], {"axis": 1})
    f.add("gather", "axis1_fewer_rows", [normal(4, 5), ids(5, 2, 3)], {"axis": 1})
    f.add("gather", "last", [normal(2, 3, 5), ids(5, 2, 3, 1)], {"axis": -1})
    f.add("gather", "permuted", [normal(5, 4), ids(5, 4, 3)], {"axis": 1}, [{"permute": [1, 0]}, None])
    f.add("gather", "index_permuted", [normal(4, 5), ids(5, 3, 4)], {"axis": 1}, [None, {"permute": [1, 0]}])
    f.add("gather", "empty", [normal(4, 5), ids(5, 4, 0)], {"axis": 1})
    for axis, n in ((0, 3), (1, 4), (2, 5)):
        f.add("index_select", f"axis{axis}", [normal(3, 4, 5), ids(n, 6)], {"axis": axis})
    f.add("index_select", "empty", [normal(3, 4), ids(3, 0)], {"axis": 0})
    f.add("index_select", "permuted", [normal(3, 4), ids(4, 6)], {"axis": 0}, [{"permute": [1, 0]}, None])
    f.add("scatter_add", "axis0", [normal(4, 5), ids(4, 3, 5), normal(3, 5)], {"axis": 0})
    f.add("scatter_add", "axis1", [normal(4, 5), ids(5, 4, 9), normal(4, 9)], {"axis": 1})
    f.add("scatter_add", "axis2", [normal(2, 3, 5), ids(5, 2, 3, 4), normal(2, 3, 4)], {"axis": 2})
    f.add("scatter_add", "one_place", [normal(1), const([0, 0, 0], torch.int64), normal(3)], {"axis": 0})
    f.add("scatter_add", "empty", [normal(3, 4), ids(4, 3, 0), normal(3, 0)], {"axis": 1})
    f.add("scatter_add", "permuted", [normal(5, 4), ids(5, 4, 3), normal(3, 4)], {"axis": 1},
          [{"permute": [1, 0]}, None, {"permute": [1, 0]}])
    f.add("one_hot", "1d", [ids(5, 7)], {"num_classes": 5})
    f.add("one_hot", "2d", [ids(4, 2, 3)], {"num_classes": 6})
    f.add("one_hot", "empty", [ids(3, 0)], {"num_classes": 3})
    f.add("embedding", "1d", [ids(6, 9), normal(6, 4)])
    f.add("embedding", "2d", [ids(6, 3, 5), normal(6, 4)])
    f.add("embedding", "permuted", [ids(6, 3, 5), normal(4, 6)], layout=[{"permute": [1, 0]}] * 2)
    f.add("embedding", "empty", [ids(6, 0), normal(6, 4)])


def order(f):
    for op in ("cumsum", "cumprod"):
        for axis in (0, 1, 2, -1):
            f.add(op, f"axis{axis}".replace("-", "m"), [away_from_zero(0.5, 1.5, 3, 5, 7)], {"axis": axis})
        f.add(op, "one", [normal(4, 1, 6)], {"axis": 1})
        f.add(op, "long", [uniform(0.9, 1.1, 2, 131)], {"axis": 1})
        f.add(op, "empty", [normal(2, 0, 3)], {"axis": 1})
        f.add(op, "permuted", [away_from_zero(0.5, 1.5, 3, 4, 5)], {"axis": 2}, [PERMUTE])
        f.add(op, "permuted_first", [away_from_zero(0.5, 1.5, 3, 4, 5)], {"axis": 0}, [PERMUTE])
    f.add("cumprod", "zeros", [const([[0.0, 2.0, 3.0, -1.5], [2.0, 0.0, 0.5, 3.0], [1.5, 0.0, 0.0, 2.0],
                                      [1.5, 2.0, 3.0, 0.0]])], {"axis": 1})
    for axis, before in ((0, (5, 7)), (1, (3, 7)), (-1, (3, 5))):
        name = f"axis{axis}".replace("-", "m")
        f.add("linear_recurrence", name, [normal(3, 5, 7), uniform(-1.0, 1.0, 3, 5, 7)], {"axis": axis})
        f.add("linear_recurrence", f"{name}_before", [normal(3, 5, 7), uniform(0.5, 1.0, 3, 5, 7), normal(*before)], {"axis": axis})
    f.add("linear_recurrence", "one_decay", [normal(4, 9, 3), uniform(0.5, 1.0, 3), normal(4, 3)], {"axis": 1})
    f.add("linear_recurrence", "line", [normal(40), uniform(0.75, 1.0, 40), normal()], {"axis": 0})
    f.add("linear_recurrence", "long", [normal(2, 131), uniform(0.75, 1.0, 2, 131)], {"axis": 1})
    f.add("linear_recurrence", "permuted", [normal(3, 4, 5), uniform(0.5, 1.0, 3, 4, 5)], {"axis": 2}, [PERMUTE] * 2)
    f.add("linear_recurrence", "empty", [normal(2, 0, 3), normal(2, 0, 3), normal(2, 3)], {"axis": 1}, diff=[True, True, False])
    for axes in ([0], [2], [0, 1], [1, 2], [0, 1, 2]):
        f.add("flip", "_".join(map(str, axes)), [normal(2, 3, 4)], {"axes": axes})
    f.add("flip", "permuted", [normal(3, 4, 5)], {"axes": [1]}, [PERMUTE])
    f.add("flip", "empty", [normal(2, 0)], {"axes": [0]})
    for name, shifts, axes in (("one", [1], [0]), ("back", [-2], [2]), ("far", [9], [1]), ("both", [1, -3], [0, 2])):
        f.add("roll", name, [normal(2, 3, 4)], {"shifts": shifts, "axes": axes})
    f.add("roll", "permuted", [normal(3, 4, 5)], {"shifts": [2], "axes": [2]}, [PERMUTE])
    f.add("roll", "empty", [normal(2, 0)], {"shifts": [1], "axes": [1]})
    for op in ("tril", "triu"):
        for diagonal in (0, 1, -1, 5, -5):
            f.add(op, f"{diagonal}".replace("-", "m"), [normal(2, 3, 4)], {"diagonal": diagonal})
        f.add(op, "permuted", [normal(4, 3)], {"diagonal": 0}, [{"permute": [1, 0]}])
        f.add(op, "empty", [normal(0, 3, 3)], {"diagonal": 0})
    for name, (x, mask) in {"same": ((3, 5), (3, 5)), "row": ((3, 5), (5,)), "wider": ((5,), (3, 5)),
                            "middle": ((3, 1, 5), (4, 1)), "empty": ((2, 0), (1, 1))}.items():
        f.add("masked_fill", name, [normal(*x), flags(*mask)], {"value": -1.5})
    f.add("masked_fill", "permuted", [normal(4, 3), flags(3, 4)], {"value": 0.5}, [{"permute": [1, 0]}, None])
    f.add("masked_fill", "infinite", [normal(4, 3), flags(4, 3)], {"value": 2.0})

    for axis, (x, i) in {0: ((4, 5), (3, 5)), 1: ((4, 5), (4, 9)), -1: ((2, 3, 5), (2, 2, 4))}.items():
        f.add("scatter", f"axis{axis}".replace("-", "m"), [normal(*x), ids(x[axis], *i), normal(*i)], {"axis": axis})
    f.add("scatter", "one_place", [normal(1), const([0, 0, 0], torch.int64), normal(3)], {"axis": 0})
    f.add("scatter", "larger_source", [normal(3, 4), ids(4, 3, 2), normal(4, 5)], {"axis": 1})
    f.add("scatter", "empty", [normal(3, 4), ids(4, 3, 0), normal(3, 0)], {"axis": 1}, diff=[True, False, False])
    f.add("scatter", "permuted", [normal(5, 4), ids(5, 4, 3), normal(3, 4)], {"axis": 1},
          [{"permute": [1, 0]}, None, {"permute": [1, 0]}])

    for op in ("sort", "argsort"):
        for descending in (False, True):
            suffix = "_descending" if descending else ""
            for axis in (0, 1, -1):
                f.add(op, f"axis{axis}{suffix}".replace("-", "m"), [distinct(3, 5, 7)], {"axis": axis, "descending": descending})
            f.add(op, f"ties{suffix}", [few(4, 9)], {"axis": 1, "descending": descending})
            f.add(op, f"ties_first{suffix}", [few(9, 4)], {"axis": 0, "descending": descending})
            f.add(op, f"permuted{suffix}", [distinct(3, 4, 5)], {"axis": 1, "descending": descending}, [PERMUTE])
            f.add(op, f"empty{suffix}", [normal(2, 0)], {"axis": 0, "descending": descending})
            f.add(op, f"special{suffix}", [const([NAN, 1.0, -INF, 0.0, -0.0, INF, NAN, -1.0])],
                  {"axis": 0, "descending": descending}, diff=[False], tag="special")
    for largest in (True, False):
        suffix = "" if largest else "_smallest"
        for axis, k in ((0, 2), (1, 5), (-1, 3), (2, 1)):
            f.add("topk", f"axis{axis}_{k}{suffix}".replace("-", "m"), [distinct(3, 5, 7)],
                  {"axis": axis, "k": k, "largest": largest})
        f.add("topk", f"none{suffix}", [distinct(3, 5)], {"axis": 1, "k": 0, "largest": largest})
        f.add("topk", f"permuted{suffix}", [distinct(3, 4, 5)], {"axis": 1, "k": 2, "largest": largest}, [PERMUTE])
        f.add("topk", f"special{suffix}", [const([NAN, 1.0, -INF, 0.5, INF, -1.0])],
              {"axis": 0, "k": 4, "largest": largest}, diff=[False], tag="special")


def conv(f):
    plain = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    for name, (x, weight, attrs) in {
        "plain": ((2, 3, 5, 6), (4, 3, 3, 3), {}),
        "padded": ((1, 2, 4, 5), (3, 2, 3, 3), {"padding": [1, 1]}),
        "strided": ((2, 2, 7, 6), (3, 2, 3, 2), {"stride": [2, 1], "padding": [1, 0]}),
        "dilated": ((1, 2, 7, 8), (2, 2, 3, 3), {"dilation": [2, 3], "padding": [2, 1]}),
        "all": ((2, 4, 8, 7), (6, 2, 3, 2), {"stride": [2, 3], "padding": [1, 2], "dilation": [2, 1], "groups": 2}),
        "depthwise": ((2, 4, 5, 5), (4, 1, 3, 3), {"padding": [1, 1], "groups": 4}),
        "one_by_one": ((2, 5, 3, 4), (3, 5, 1, 1), {}),
        "wide_channels": ((1, 19, 4, 4), (17, 19, 3, 3), {"padding": [1, 1]}),
        "empty": ((0, 2, 4, 4), (3, 2, 3, 3), {}),
    }.items():
        attrs = {**plain, **attrs}
        f.add("conv2d", name, [normal(*x), normal(*weight)], attrs)
        f.add("conv2d", f"{name}_bias", [normal(*x), normal(*weight), normal(weight[0])], attrs)
    f.add("conv2d", "channels_last", [normal(2, 5, 6, 3), normal(4, 3, 3, 3)], {**plain, "padding": [1, 1]},
          [{"permute": [0, 3, 1, 2]}, None])
    f.add("conv2d", "narrowed", [normal(2, 3, 5, 9), normal(2, 3, 2, 2)], plain, [{"narrow": [3, 1, 6]}, None])
    f.add("conv2d", "weight_permuted", [normal(1, 3, 4, 4), normal(3, 2, 2, 2)], plain, [None, {"permute": [1, 0, 2, 3]}])
    f.add("conv1d", "plain", [normal(2, 3, 9), normal(4, 3, 3), normal(4)], {"stride": 1, "padding": 0, "dilation": 1, "groups": 1})
    f.add("conv1d", "all", [normal(2, 4, 13), normal(6, 2, 3), normal(6)], {"stride": 2, "padding": 3, "dilation": 2, "groups": 2})
    transposed = {**plain, "output_padding": [0, 0]}
    for name, (x, weight, attrs) in {
        "plain": ((2, 3, 4, 3), (3, 4, 3, 3), {}),
        "strided": ((2, 2, 3, 4), (2, 3, 3, 2), {"stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2]}),
        "all": ((1, 4, 3, 3), (4, 2, 3, 2), {"stride": [2, 2], "padding": [1, 1], "dilation": [2, 1], "groups": 2}),
    }.items():
        attrs = {**transposed, **attrs}
        f.add("conv_transpose2d", name, [normal(*x), normal(*weight)], attrs)
        bias = weight[1] * attrs["groups"]
        f.add("conv_transpose2d", f"{name}_bias", [normal(*x), normal(*weight), normal(bias)], attrs)
    f.add("conv_transpose1d", "all", [normal(2, 4, 5), normal(4, 3, 3), normal(6)],
          {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 1, "groups": 2})

    for name, (x, attrs) in {
        "halves": ((2, 3, 4, 6), {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]}),
        "overlap": ((2, 2, 5, 7), {"kernel": [3, 2], "stride": [1, 2], "padding": [1, 1]}),
        "gaps": ((1, 2, 7, 8), {"kernel": [2, 2], "stride": [3, 4], "padding": [0, 1]}),
        "one": ((2, 1, 3, 3), {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0]}),
        "whole": ((2, 2, 3, 4), {"kernel": [3, 4], "stride": [3, 4], "padding": [0, 0]}),
        "empty": ((0, 2, 4, 4), {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]}),
    }.items():
        f.add("max_pool2d", name, [distinct(*x)], attrs)
        for every in (True, False):
            f.add("avg_pool2d", f"{name}_all" if every else name, [normal(*x)], {**attrs, "all": every})
    f.add("max_pool2d", "permuted", [distinct(2, 4, 6, 3)], {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]},
          [{"permute": [0, 3, 1, 2]}])
    f.add("max_pool1d", "overlap", [distinct(2, 3, 9)], {"kernel": 3, "stride": 2, "padding": 1})
    f.add("avg_pool1d", "overlap", [normal(2, 3, 9)], {"kernel": 3, "stride": 2, "padding": 1, "all": False})


def attention(f):
    for name, (b, h, nq, nk, d, attrs) in {
        "plain": (2, 3, 5, 5, 4, {}), "odd": (1, 2, 7, 7, 5, {}), "longer_keys": (2, 2, 3, 9, 6, {}),
        "longer_queries": (2, 2, 11, 2, 3, {}), "scale": (1, 3, 5, 6, 4, {"scale": 1.0}), "one": (1, 1, 1, 1, 1, {}),
        "one_key": (2, 1, 4, 1, 3, {}), "head_17": (1, 2, 6, 6, 17, {}), "long": (1, 1, 35, 67, 4, {}),
        "no_batch": (0, 2, 3, 3, 4, {}),
        "causal": (2, 3, 6, 6, 4, {"causal": True}), "causal_one": (1, 2, 1, 1, 4, {"causal": True}),
        "causal_scale": (1, 2, 9, 9, 5, {"causal": True, "scale": 0.25}), "causal_long": (1, 1, 37, 37, 3, {"causal": True}),
    }.items():
        f.add("sdpa", name, [normal(b, h, nq, d), normal(b, h, nk, d), normal(b, h, nk, d)], {"causal": False, **attrs})
    heads = [{"permute": [0, 2, 1, 3]}] * 3
    f.add("sdpa", "heads_permuted", [normal(2, 5, 3, 4)] * 3, {"causal": False}, heads)
    f.add("sdpa", "heads_permuted_causal", [normal(2, 5, 3, 4)] * 3, {"causal": True}, heads)
    f.add("sdpa", "heads_permuted_longer", [normal(2, 4, 3, 4), normal(2, 7, 3, 4), normal(2, 7, 3, 4)],
          {"causal": False}, heads)
    f.add("sdpa", "narrowed", [normal(2, 2, 5, 4)] * 3, {"causal": False}, [{"narrow": [2, 1, 3]}, {"narrow": [3, 0, 4]},
                                                                           None])
    f.add("sdpa", "shared_keys", [normal(2, 3, 4, 5), normal(2, 1, 6, 5), normal(2, 1, 6, 5)], {"causal": False},
          [None, {"broadcast": [2, 3, 6, 5]}, {"broadcast": [2, 3, 6, 5]}])
    f.add("sdpa", "sharp", [normal(1, 2, 5, 4, std=8.0)] * 3, {"causal": False})
    def seen(*shape):
        """Every query sees the first key."""
        def sample(rng):
            mask = flags(*shape)(rng)
            mask[..., 0] = True
            return mask
        return sample

    def biases(*shape):
        def sample(rng):
            return normal(*shape)(rng).masked_fill(~seen(*shape)(rng), -INF)
        return sample

    for name, (b, h, nq, nk, d, mask, attrs) in {
        "bool": (2, 3, 5, 7, 4, seen(2, 3, 5, 7), {"kind": "bool"}),
        "bool_of_keys": (2, 2, 4, 9, 3, seen(2, 1, 1, 9), {"kind": "bool"}),
        "bool_of_queries": (2, 2, 6, 6, 4, seen(6, 6), {"kind": "bool", "causal": True}),
        "float": (2, 3, 5, 7, 4, normal(2, 3, 5, 7), {"kind": "float"}),
        "float_of_heads": (2, 3, 6, 6, 4, normal(3, 6, 6), {"kind": "float"}),
        "float_hidden": (1, 2, 7, 9, 5, biases(2, 7, 9), {"kind": "float"}),
        "float_causal": (2, 2, 6, 6, 4, normal(6, 6), {"kind": "float", "causal": True}),
        "lengths": (3, 2, 5, 6, 4, const([6, 1, 4], torch.int64), {"kind": "lengths"}),
        "lengths_causal": (3, 2, 6, 6, 4, const([2, 6, 5], torch.int64), {"kind": "lengths", "causal": True}),
        "past": (2, 2, 3, 8, 4, const([8, 7], torch.int64), {"kind": "lengths", "causal": True, "past": 5}),
        "past_one": (1, 3, 1, 5, 4, const([5], torch.int64), {"kind": "lengths", "causal": True, "past": 4}),
        "past_long": (1, 1, 33, 70, 4, seen(33, 70), {"kind": "bool", "causal": True, "past": 37}),
    }.items():
        f.add("sdpa_with", name, [normal(b, h, nq, d), normal(b, h, nk, d), normal(b, h, nk, d), mask],
              {"causal": False, "past": 0, **attrs})
    f.add("sdpa_with", "permuted", [normal(2, 5, 3, 4)] * 3 + [normal(5, 5)], {"kind": "float", "causal": True, "past": 0},
          heads + [{"permute": [1, 0]}])

    for n in (1, 2, 4, 8, 64, 128):
        f.add("hadamard", f"{n}", [normal(3, n)])
    f.add("hadamard", "3d", [normal(3, 5, 16)])
    f.add("hadamard", "permuted", [normal(8, 3, 2)], layout=[{"permute": [2, 1, 0]}])
    f.add("hadamard", "empty", [normal(0, 4)])


def loss(f):
    # Even against odd multiples of 1/64: the difference is never zero.
    a, b = (lambda *s: distinct(*s)), (lambda *s: distinct(*s, odd=True))
    for op, attrs in {"mse_loss": {}, "l1_loss": {}, "huber_loss": {"delta": 0.75}}.items():
        for name, shape in {"3d": (3, 5, 7), "2d": (4, 1), "one": (1,), "scalar": ()}.items():
            f.add(op, name, [a(*shape), b(*shape)], attrs, diff=[True, False])
        f.add(op, "both", [a(4, 5), b(4, 5)], attrs, diff=[True, True])
        f.add(op, "permuted", [a(3, 4), b(4, 3)], attrs, [{"permute": [1, 0]}, None], diff=[True, False])
    f.add("huber_loss", "delta_1", [normal(5, 6), normal(5, 6)], {"delta": 1.0}, diff=[True, False])
    f.add("l1_loss", "equal", [few(4, 5), few(4, 5)], diff=[True, False], tag="kink")
    for name, (shape, q) in {"three": ((4, 5), [0.125, 0.5, 0.875]), "one": ((6,), [0.75]), "2d": ((3,), [0.1, 0.9])}.items():
        f.add("quantile_loss", name, [a(*shape, len(q)), b(*shape)], {"q": q}, diff=[True, False])
    for smoothing in (0.0, 0.1):
        suffix = "smoothed_" if smoothing else ""
        for name, (n, c) in {"odd": (7, 5), "two": (9, 2), "one_row": (1, 4), "one_class": (3, 1), "many": (3, 67)}.items():
            f.add("cross_entropy", suffix + name, [normal(n, c, std=2.0), ids(c, n)], {"label_smoothing": smoothing})
        f.add("cross_entropy", suffix + "permuted", [normal(5, 7), ids(5, 7)], {"label_smoothing": smoothing},
              [{"permute": [1, 0]}, None])
    for name, shape in {"3d": (3, 5, 7), "one": (1,), "scalar": ()}.items():
        f.add("bce_with_logits", name, [normal(*shape, std=2.0), uniform(0.125, 0.875, *shape)])
    f.add("bce_with_logits", "classes", [normal(4, 5, std=4.0), few(4, 5, values=(0.0, 1.0))], diff=[True, False])
    f.add("bce_with_logits", "permuted", [normal(3, 4), uniform(0.125, 0.875, 4, 3)], {}, [{"permute": [1, 0]}, None])
    for name, shape in {"3d": (3, 5, 7), "2d": (4, 6), "1d": (5,)}.items():
        f.add("kl_div", name, [uniform(-4.0, -0.25, *shape), uniform(0.125, 0.875, *shape)])
    f.add("kl_div", "zeros", [uniform(-4.0, -0.25, 3, 4), few(3, 4, values=(0.0, 0.5))], diff=[True, False])
    for reduction in ("sum", "none"):
        for op, more in {"mse_loss": {}, "l1_loss": {}, "huber_loss": {"delta": 0.75}}.items():
            attrs = {**more, "reduction": reduction}
            f.add(f"{op}_reduced", reduction, [a(3, 4, 5), b(3, 4, 5)], attrs)
            f.add(f"{op}_reduced", f"{reduction}_permuted", [a(3, 4), b(4, 3)], attrs, [{"permute": [1, 0]}, None])
            f.add(f"{op}_reduced", f"{reduction}_empty", [a(2, 0), b(2, 0)], attrs)
        attrs = {"reduction": reduction}
        f.add("bce_with_logits_reduced", reduction, [normal(4, 5, std=2.0), uniform(0.125, 0.875, 4, 5)], attrs)
        f.add("bce_with_logits_reduced", f"{reduction}_permuted", [normal(3, 4), uniform(0.125, 0.875, 4, 3)], attrs,
              [{"permute": [1, 0]}, None])
        f.add("kl_div_reduced", reduction, [uniform(-4.0, -0.25, 4, 6), uniform(0.125, 0.875, 4, 6)], attrs)
        f.add("kl_div_reduced", f"{reduction}_zeros", [uniform(-4.0, -0.25, 3, 4), few(3, 4, values=(0.0, 0.5))], attrs,
              diff=[True, False])
        f.add("quantile_loss_reduced", reduction, [a(4, 5, 3), b(4, 5)], {"q": [0.125, 0.5, 0.875], **attrs})
    for axis in (0, 1, -1):
        f.add("cosine_similarity", f"axis{axis}".replace("-", "m"), [normal(3, 5, 7), normal(3, 5, 7)], {"axis": axis, "eps": 1e-8})
    f.add("cosine_similarity", "broadcast", [normal(3, 5), normal(5)], {"axis": -1, "eps": 1e-8})
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            attrs = {"label_smoothing": smoothing, "ignore_index": 1, "reduction": reduction}
            suffix = f"{reduction}_smoothed" if smoothing else reduction
            f.add("cross_entropy_with", suffix, [normal(7, 4, std=2.0), ids(4, 7), uniform(0.25, 2.0, 4)], attrs,
                  diff=[True, False, False])
    f.add("cross_entropy_with", "plain", [normal(5, 3), ids(3, 5)],
          {"label_smoothing": 0.0, "ignore_index": None, "reduction": "mean"})
    f.add("cross_entropy", "large_logits", [normal(4, 5, mean=96.0, std=32.0), ids(5, 4)], {"label_smoothing": 0.0})


def resize(f):
    for mode in ("reflect", "replicate", "circular"):
        for name, (x, padding) in {
            "1d": ((2, 3, 5), [[0, 0], [0, 0], [2, 4]]), "2d": ((2, 1, 4, 6), [[0, 0], [0, 0], [1, 3], [5, 2]]),
            "one_side": ((1, 2, 7), [[0, 0], [0, 0], [0, 3]]), "3d": ((1, 1, 3, 2, 4), [[0, 0], [0, 0], [2, 1], [1, 1], [3, 0]]),
            "empty": ((0, 2, 4), [[0, 0], [0, 0], [1, 1]]),
        }.items():
            f.add("pad_mode", f"{mode}_{name}", [normal(*x)], {"padding": padding, "mode": mode})
        f.add("pad_mode", f"{mode}_permuted", [normal(2, 6, 3)], {"padding": [[0, 0], [0, 0], [1, 2]], "mode": mode}, [{"permute": [0, 2, 1]}])
    for name, (x, size) in {"twice": ((2, 3, 6), [12]), "smaller": ((2, 3, 11), [4]), "larger": ((1, 2, 5), [23]),
                            "one": ((2, 2, 7), [1]), "of_one": ((2, 2, 1), [3])}.items():
        for mode, align in (("nearest", None), ("nearest-exact", None), ("linear", False), ("linear", True), ("area", None)):
            corners = "_corners" if align else ""
            f.add("interpolate", f"{mode}{corners}_{name}", [normal(*x)], {"size": size, "mode": mode, "align_corners": align})
    for name, (x, size) in {"images_twice": ((2, 2, 3, 4), [6, 8]), "mixed": ((1, 3, 7, 5), [4, 9]), "whole": ((2, 1, 5, 6), [1, 1]),
                            "same": ((1, 2, 4, 3), [4, 3])}.items():
        for mode, align in (("nearest", None), ("nearest-exact", None), ("bilinear", False), ("bilinear", True), ("bicubic", False),
                            ("bicubic", True), ("area", None)):
            corners = "_corners" if align else ""
            f.add("interpolate", f"{mode}{corners}_{name}", [normal(*x)], {"size": size, "mode": mode, "align_corners": align})
    for mode, align in (("nearest", None), ("trilinear", False), ("trilinear", True), ("area", None)):
        corners = "_corners" if align else ""
        f.add("interpolate", f"{mode}{corners}_volume", [normal(1, 2, 3, 4, 5)],
              {"size": [5, 2, 7], "mode": mode, "align_corners": align})
    f.add("interpolate", "linear_permuted", [normal(2, 6, 3)], {"size": [9], "mode": "linear", "align_corners": False},
          [{"permute": [0, 2, 1]}])
    for name, (x, size) in {"even": ((2, 3, 8), 4), "uneven": ((2, 3, 10), 3), "larger": ((1, 2, 4), 6), "one": ((2, 3, 5), 1)}.items():
        f.add("adaptive_avg_pool1d", name, [normal(*x)], {"output_size": size})
    for name, (x, size) in {"even": ((2, 3, 8, 6), [4, 3]), "uneven": ((2, 1, 7, 10), [3, 4]), "one": ((2, 3, 5, 4), [1, 1])}.items():
        f.add("adaptive_avg_pool2d", name, [normal(*x)], {"output_size": size})
    for name, (x, axis) in {"odd": ((3, 7), 1), "even": ((3, 8), -1), "first": ((6, 2, 3), 0), "one": ((4, 1), 1)}.items():
        f.add("median", name, [distinct(*x)], {"axis": axis})
        for q in (0.0, 0.25, 0.9, 1.0):
            f.add("quantile", f"{q}_{name}", [distinct(*x)], {"q": q, "axis": axis})
    f.add("quantile", "permuted", [distinct(5, 4)], {"q": 0.4, "axis": 0}, [{"permute": [1, 0]}])


def shape(f):
    for name, (x, to) in {"split": ((6, 4), [2, 3, 4]), "join": ((2, 3, 4), [6, 4]), "scalar": ((1, 1), []),
                          "empty": ((2, 0, 3), [3, 0]), "same": ((3,), [3])}.items():
        f.add("reshape", name, [normal(*x)], {"shape": to})
    f.add("reshape", "permuted", [normal(3, 4)], {"shape": [6, 2]}, [{"permute": [1, 0]}])
    f.add("reshape", "narrowed", [normal(2, 5, 3)], {"shape": [18]}, [NARROW])
    f.add("transpose", "2d", [normal(3, 4)], {"axis0": 0, "axis1": 1})
    f.add("transpose", "negative", [normal(2, 3, 4)], {"axis0": -1, "axis1": 0})
    f.add("permute", "3d", [normal(2, 3, 4)], {"axes": [2, 0, 1]})
    f.add("permute", "permuted", [normal(2, 3, 4)], {"axes": [1, 0, 2]}, [PERMUTE])
    f.add("narrow", "middle", [normal(3, 7)], {"axis": 1, "start": 2, "length": 3})
    f.add("narrow", "nothing", [normal(3, 7)], {"axis": 0, "start": 1, "length": 0})
    f.add("narrow", "permuted", [normal(3, 7)], {"axis": 0, "start": 1, "length": 4}, [{"permute": [1, 0]}])
    f.add("broadcast_to", "row", [normal(5)], {"shape": [3, 5]})
    f.add("broadcast_to", "ones", [normal(3, 1, 2)], {"shape": [4, 3, 5, 2]})
    f.add("broadcast_to", "scalar", [normal()], {"shape": [2, 3]})
    f.add("broadcast_to", "empty", [normal(1, 3)], {"shape": [0, 3]})
    f.add("squeeze", "middle", [normal(3, 1, 4)], {"axis": 1})
    f.add("unsqueeze", "middle", [normal(3, 4)], {"axis": 1})
    f.add("unsqueeze", "last", [normal(3, 4)], {"axis": -1})
    f.add("flatten", "all", [normal(2, 3, 4)], {"start_axis": 0, "end_axis": 2})
    f.add("flatten", "tail", [normal(2, 3, 4)], {"start_axis": 1, "end_axis": -1})
    f.add("flatten", "permuted", [normal(2, 3, 4)], {"start_axis": 1, "end_axis": 2}, [PERMUTE])
    for name, (x, axis, size, step) in {"overlap": ((3, 24), -1, 8, 4), "gaps": ((2, 11), 1, 2, 3), "whole": ((2, 5), 1, 5, 1),
                                        "first_axis": ((9, 3), 0, 4, 2), "remainder": ((2, 10), -1, 4, 4)}.items():
        f.add("unfold", name, [normal(*x)], {"axis": axis, "size": size, "step": step})
    f.add("unfold", "permuted", [normal(10, 3)], {"axis": 1, "size": 4, "step": 3}, [{"permute": [1, 0]}])
    f.add("unfold", "broadcast", [normal(1, 9)], {"axis": 1, "size": 3, "step": 2}, [{"broadcast": [4, 9]}])
    f.add("unflatten", "last", [normal(3, 12)], {"axis": -1, "sizes": [2, 3, 2]})
    f.add("unflatten", "middle", [normal(2, 6, 3)], {"axis": 1, "sizes": [3, 2]})
    f.add("unflatten", "permuted", [normal(6, 5)], {"axis": 1, "sizes": [3, 2]}, [{"permute": [1, 0]}])
    f.add("unbind", "middle", [normal(2, 3, 4)], {"axis": 1})
    f.add("split", "even", [normal(6, 2)], {"size": 2, "axis": 0})
    f.add("split", "remainder", [normal(2, 7)], {"size": 3, "axis": 1})
    f.add("chunk", "remainder", [normal(7, 2)], {"chunks": 3, "axis": 0})
    f.add("split_with_sizes", "three", [normal(3, 7)], {"sizes": [4, 1, 2], "axis": 1})
    f.add("split_with_sizes", "none", [normal(5, 2)], {"sizes": [0, 5], "axis": -2})
    f.add("chunk", "fewer", [normal(4, 2)], {"chunks": 3, "axis": 0})


if __name__ == "__main__":
    families = {g.__name__: g for g in (unary, binary, reduce, norm, matmul, index, order, conv, attention, loss, shape, resize)}
    for name in sys.argv[1:] or families:
        family = Family(name)
        families[name](family)
        family.save()
