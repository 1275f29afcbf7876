"""Makes the reference values for optimisers, schedules and layers, with PyTorch in float64.

    pip install torch numpy safetensors && python make.py

The files hold one metadata key, `cases`: a JSON list of {"name", "op", "attrs", ...}; the tensors of a case
are named `<case>/...`, all F64. Parameters, gradients, inputs and cotangents have at most eight significant
bits, so they are exact in f32 and bf16 too.

optim.safetensors
    adamw, adam, sgd, rmsprop
                    attrs: the optimiser's arguments, `steps`, and `params`, the number of parameters.
                    param<p>        before the first step
                    step<t>/grad<p> gradient given to step t = 1, 2, ...     lr  learning rate of each step
                    step<t>/param<p>, step<t>/exp_avg<p>, step<t>/exp_avg_sq<p> (adamw, adam),
                    step<t>/square_avg<p>, step<t>/grad_avg<p> (rmsprop, centered) or
                    step<t>/momentum_buffer<p> (sgd and rmsprop, momentum > 0)            after step t
                    AdamW: p -= lr * weight_decay * p, then p -= lr * m_hat / (sqrt(v_hat) + eps). SGD:
                    g += weight_decay * p; buffer = momentum * buffer + g (the first buffer is g); p -= lr * buffer.
    clip_grad_norm  attrs: max_norm, params. grad<p>, clipped<p>, total_norm (before clipping): gradients are
                    scaled by min(1, max_norm / (total_norm + 1e-6)).
    schedule        attrs: kind and its arguments. lr: the rate in effect at step 0, 1, ... (the first optimiser
                    step uses lr[0]).
        constant        base_lr
        cosine          eta_min + (base_lr - eta_min) (1 + cos(pi t / t_max)) / 2, for t = 0..t_max
        one_cycle       OneCycleLR with cosine annealing: from max_lr / div_factor up to max_lr at t = pct_start *
                        total_steps - 1, down to max_lr / div_factor / final_div_factor at t = total_steps - 1
        warmup_cosine   base_lr (start_factor + (1 - start_factor) t / warmup_steps) for t < warmup_steps, then
                        cosine from base_lr to eta_min over the other total_steps - warmup_steps steps

layers.safetensors
    attention       self-attention of x [B, N, D]; attrs: d_model, heads, causal
    encoder         one transformer encoder layer; attrs: d_model, heads, ffn, norm_first, activation (relu, gelu,
                    gelu_tanh), eps; no dropout
    group_norm      of x [B, channels, ..]; attrs: groups, channels, eps; weight and bias [channels]
                    in0, out0, grad_out0 (cotangent), grad_in0; param/<name> and grad/<name> for
                    attn.{q,k,v,o}.{weight [out, in],bias}, and for the encoder also
                    norm1.{weight,bias}, norm2.{weight,bias}, ffn.0.{weight,bias}, ffn.2.{weight,bias}
                    pre-norm  x + attn(norm1(x)), then x + ffn(norm2(x)); post-norm  norm1(x + attn(x)), then
                    norm2(x + ffn(x)). Heads split D into consecutive runs.

recurrent.safetensors
    gru, lstm       attrs: inputs, hidden, layers. in0 [B, T, inputs], h0 and (lstm) c0 [layers, B, hidden], out0 [B, T,
                    hidden], h1 and c1, the last states; grad_out0, grad_in0, grad_h0; param/<name> and grad/<name> by the
                    names of PyTorch. Gradients are those of sum(out0 * grad_out0) + sum(h1) + sum(c1).
    rotary          attrs: width, base, start. in0 [.., T, width], out0: computed with complex numbers
"""

import json
import math
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.optim import lr_scheduler

torch.set_default_dtype(torch.float64)
# Schedules are walked here without optimiser steps in between.
warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
warnings.filterwarnings("ignore", message=".*epoch parameter in.*")


def normal(*shape, mean=0.0, std=1.0):
    return (torch.randn(shape) * std + mean).to(torch.bfloat16).double()


class Cases:
    def __init__(self, name):
        self.path = Path(__file__).with_name(f"{name}.safetensors")
        self.cases, self.tensors = [], {}

    def add(self, name, op, attrs, **more):
        torch.manual_seed(len(self.cases))
        self.cases.append(dict(name=name, op=op, attrs=attrs, **more))

        def keep(key, value):
            value = torch.as_tensor(value, dtype=torch.float64).detach()
            self.tensors[f"{name}/{key}"] = value.clone(memory_format=torch.contiguous_format)

        return keep

    def save(self):
        save_file(self.tensors, self.path, {"cases": json.dumps(self.cases, separators=(",", ":"))})
        print(f"{self.path.name}: {len(self.cases)} cases, {self.path.stat().st_size} bytes")


SHAPES = [(3, 5), (7,), (1,)]


def optimiser(out, name, kind, rates, **arguments):
    keep = out.add(name, kind, dict(arguments, steps=len(rates), params=len(SHAPES)))
    params = [nn.Parameter(normal(*s)) for s in SHAPES]
    kinds = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop"}
    make = getattr(torch.optim, kinds[kind])
    optim = make(params, lr=rates[0], **arguments)
    keep("lr", rates)
    for i, p in enumerate(params):
        keep(f"param{i}", p)
    for t, rate in enumerate(rates, 1):
        optim.param_groups[0]["lr"] = rate
        for i, p in enumerate(params):
            # Small and large gradients; a zero one in step 2, where only moments and decay act.
            p.grad = normal(*p.shape, std=4.0 ** (i - t + 1)) if t != 2 else torch.zeros_like(p)
            keep(f"step{t}/grad{i}", p.grad)
        optim.step()
        for i, p in enumerate(params):
            keep(f"step{t}/param{i}", p)
            for key in ("exp_avg", "exp_avg_sq", "square_avg", "grad_avg", "momentum_buffer"):
                if optim.state[p].get(key) is not None:
                    keep(f"step{t}/{key}{i}", optim.state[p][key])


def clip(out, name, max_norm, std):
    keep = out.add(name, "clip_grad_norm", {"max_norm": max_norm, "params": len(SHAPES)})
    params = [nn.Parameter(torch.zeros(s)) for s in SHAPES]
    for i, p in enumerate(params):
        p.grad = normal(*p.shape, std=std)
        keep(f"grad{i}", p.grad)
    keep("total_norm", nn.utils.clip_grad_norm_(params, max_norm))
    for i, p in enumerate(params):
        keep(f"clipped{i}", p.grad)


def schedule(out, name, steps, make, closed_form, **attrs):
    optim = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=attrs.get("base_lr", 1.0))
    scheduler, rates = make(optim), []
    for t in range(steps):
        rates.append(optim.param_groups[0]["lr"])
        if t + 1 < steps:
            scheduler.step()
    # PyTorch applies recurrences; the closed form is what is stored, once they are seen to agree.
    exact = [closed_form(t) for t in range(steps)]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor(exact), rtol=1e-12, atol=1e-15)
    out.add(name, "schedule", attrs)("lr", exact)


def cosine(start, end, fraction):
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2


def schedules(out):
    schedule(out, "constant", 5, lambda o: lr_scheduler.ConstantLR(o, 1.0), lambda t: 0.003, kind="constant", base_lr=0.003)
    for name, t_max, eta_min in (("cosine", 20, 0.0), ("cosine_floor", 7, 1e-5), ("cosine_one", 1, 0.0)):
        schedule(out, name, t_max + 1, lambda o: lr_scheduler.CosineAnnealingLR(o, t_max, eta_min),
                 lambda t: cosine(1e-3, eta_min, t / t_max),
                 kind="cosine", base_lr=1e-3, t_max=t_max, eta_min=eta_min)
    for name, total, pct, div, final in (("one_cycle", 30, 0.3, 25.0, 1e4), ("one_cycle_odd", 17, 0.4, 10.0, 100.0)):
        peak, low = pct * total - 1, 0.01 / div
        schedule(out, name, total,
                 lambda o: lr_scheduler.OneCycleLR(o, 0.01, total, pct_start=pct, div_factor=div,
                                                   final_div_factor=final, cycle_momentum=False),
                 lambda t: cosine(low, 0.01, t / peak) if t <= peak
                 else cosine(0.01, low / final, (t - peak) / (total - 1 - peak)),
                 kind="one_cycle", max_lr=0.01, total_steps=total, pct_start=pct, div_factor=div, final_div_factor=final)
    for name, warm, total, start, eta_min in (("warmup_cosine", 5, 25, 0.1, 0.0), ("warmup_cosine_floor", 4, 12, 0.25, 1e-4)):
        schedule(out, name, total + 1,
                 lambda o: lr_scheduler.SequentialLR(o, [
                     lr_scheduler.LinearLR(o, start, total_iters=warm),
                     lr_scheduler.CosineAnnealingLR(o, total - warm, eta_min)], [warm]),
                 lambda t: 2e-3 * (start + (1 - start) * t / warm) if t < warm
                 else cosine(2e-3, eta_min, (t - warm) / (total - warm)),
                 kind="warmup_cosine", base_lr=2e-3, warmup_steps=warm, total_steps=total, start_factor=start, eta_min=eta_min)


ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def our_names(torch_name, tensor):
    """PyTorch's name of a parameter (or of its gradient) -> ours, with the packed projections taken apart."""
    name = torch_name.removeprefix("self_attn.")
    if name.startswith("in_proj_"):
        kind = name.removeprefix("in_proj_")
        return {f"attn.{n}.{kind}": part for n, part in zip("qkv", tensor.chunk(3))}
    name = name.replace("out_proj.", "attn.o.").replace("linear1.", "ffn.0.").replace("linear2.", "ffn.2.")
    return {name: tensor}


def layer(out, name, op, module, forward, attrs, *shape):
    keep = out.add(name, op, attrs)
    for key, p in module.named_parameters():
        is_gain = p.dim() == 1 and key.endswith("weight")
        std = p.shape[-1] ** -0.5 if p.dim() == 2 else 0.25
        p.data = normal(*p.shape, mean=float(is_gain), std=std)
    x = normal(*shape).requires_grad_()
    y = forward(module, x)
    cotangent = normal(*y.shape)
    y.backward(cotangent)
    keep("in0", x), keep("out0", y), keep("grad_out0", cotangent), keep("grad_in0", x.grad)
    for key, p in module.named_parameters():
        for ours, part in our_names(key, p).items():
            keep(f"param/{ours}", part)
        for ours, part in our_names(key, p.grad).items():
            keep(f"grad/{ours}", part)


def attention(out, name, d, heads, batch, tokens, causal=False):
    mask = nn.Transformer.generate_square_subsequent_mask(tokens) if causal else None
    layer(out, name, "attention", nn.MultiheadAttention(d, heads, batch_first=True),
          lambda m, x: m(x, x, x, need_weights=False, attn_mask=mask)[0],
          {"d_model": d, "heads": heads, "causal": causal}, batch, tokens, d)


def encoder(out, name, d, heads, ffn, batch, tokens, norm_first, activation):
    module = nn.TransformerEncoderLayer(d, heads, ffn, dropout=0.0, activation=ACTIVATIONS[activation],
                                        layer_norm_eps=1e-5, batch_first=True, norm_first=norm_first)
    layer(out, name, "encoder", module, lambda m, x: m(x),
          {"d_model": d, "heads": heads, "ffn": ffn, "norm_first": norm_first, "activation": activation, "eps": 1e-5},
          batch, tokens, d)


def group_norm(out, name, groups, eps, *shape):
    layer(out, name, "group_norm", nn.GroupNorm(groups, shape[1], eps), lambda m, x: m(x),
          {"groups": groups, "channels": shape[1], "eps": eps}, *shape)


def recurrent(out, op, inputs, hidden, layers):
    keep = out.add(f"{op}_{layers}", op, dict(inputs=inputs, hidden=hidden, layers=layers))
    layer = {"gru": nn.GRU, "lstm": nn.LSTM}[op](inputs, hidden, layers, batch_first=True)
    x = normal(2, 5, inputs).requires_grad_()
    states = [normal(layers, 2, hidden).requires_grad_() for _ in range(2 if op == "lstm" else 1)]
    y, last = layer(x, tuple(states) if op == "lstm" else states[0])
    last = last if op == "lstm" else (last,)
    cotangent = normal(*y.shape)
    ((y * cotangent).sum() + sum(s.sum() for s in last)).backward()
    for key, value in (("in0", x), ("out0", y), ("grad_out0", cotangent), ("grad_in0", x.grad), ("grad_h0", states[0].grad)):
        keep(key, value)
    for name, before, after in zip("hc", states, last):
        keep(f"{name}0", before)
        keep(f"{name}1", after)
    for name, parameter in layer.named_parameters():
        keep(f"param/{name}", parameter)
        keep(f"grad/{name}", parameter.grad)


def rotary(out, name, width, moments, base, start):
    keep = out.add(name, "rotary", dict(width=width, base=base, start=start))
    x = normal(2, 3, moments, width)
    pairs = torch.complex(x[..., : width // 2], x[..., width // 2 :])
    places = torch.arange(start, start + moments, dtype=torch.float64)
    angles = places[:, None] * base ** (-2 * torch.arange(width // 2) / width)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    keep("in0", x)
    keep("out0", torch.cat([turned.real, turned.imag], -1))


if __name__ == "__main__":
    optim = Cases("optim")
    rates = [1e-3, 1e-3, 5e-4, 2e-3, 1e-3]
    optimiser(optim, "adamw", "adamw", rates, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    optimiser(optim, "adamw_no_decay", "adamw", rates, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0)
    optimiser(optim, "adamw_large_decay", "adamw", [0.5, 0.25, 0.125], betas=(0.9, 0.99), eps=1e-3, weight_decay=0.5)
    optimiser(optim, "sgd", "sgd", rates, momentum=0.0, weight_decay=0.0)
    optimiser(optim, "sgd_momentum", "sgd", rates, momentum=0.9, weight_decay=0.0)
    optimiser(optim, "sgd_momentum_decay", "sgd", rates, momentum=0.9, weight_decay=0.05)
    clip(optim, "clip_above", 1.0, 3.0)
    clip(optim, "clip_below", 100.0, 1.0)
    clip(optim, "clip_zero", 1.0, 0.0)
    schedules(optim)
    optimiser(optim, "adam", "adam", rates, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    optimiser(optim, "adam_decay", "adam", [0.5, 0.25, 0.125], betas=(0.8, 0.95), eps=1e-3, weight_decay=0.05)
    optimiser(optim, "rmsprop", "rmsprop", rates, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False)
    for momentum, centered in [(0.9, False), (0.0, True), (0.9, True)]:
        name = f"rmsprop_{'centered' if centered else 'plain'}_{'momentum' if momentum else 'none'}"
        settings = dict(alpha=0.9, eps=1e-3, weight_decay=0.05, momentum=momentum, centered=centered)
        optimiser(optim, name, "rmsprop", rates, **settings)
    optim.save()

    layers = Cases("layers")
    attention(layers, "attention", 12, 3, 2, 5)
    attention(layers, "attention_causal", 12, 3, 2, 5, causal=True)
    attention(layers, "attention_one_head", 5, 1, 1, 7)
    attention(layers, "attention_one_token", 6, 2, 3, 1)
    for activation in ACTIVATIONS:
        encoder(layers, f"encoder_pre_{activation}", 12, 3, 20, 2, 5, True, activation)
        encoder(layers, f"encoder_post_{activation}", 12, 3, 20, 2, 5, False, activation)
    encoder(layers, "encoder_pre_odd", 7, 1, 9, 3, 4, True, "gelu_tanh")
    group_norm(layers, "group_norm", 3, 1e-5, 2, 6, 5)
    group_norm(layers, "group_norm_image", 2, 1e-3, 3, 4, 3, 2)
    group_norm(layers, "group_norm_channels", 5, 1e-5, 2, 5, 7)
    group_norm(layers, "group_norm_rows", 1, 1e-5, 4, 6)
    layers.save()
    out = Cases("recurrent")
    for layers in (1, 2):
        recurrent(out, "gru", 3, 4, layers)
        recurrent(out, "lstm", 3, 4, layers)
    rotary(out, "rotary", 8, 5, 10000.0, 0)
    rotary(out, "rotary_later", 6, 4, 100.0, 3)
    out.save()
