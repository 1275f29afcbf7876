"""One full PatchTST training step on the CPU in PyTorch (eager and compiled) and JAX (jit), in f32.

    pip install torch jax optax        # torch-compiled needs a C++ compiler
    python bench/peers_cpu.py [--configs seed,small,large] [--variants torch-eager,torch-compiled,jax-jit]
                              [--threads 2] [--warmup 5] [--steps 20] [--reps 5]

A step is forward, MSE, backward, clipping of the global gradient norm at 1.0 and AdamW (lr 1e-3, weight decay
0.01) on random batches that lie in memory and rotate; the model is that of `refrain bench step`. Each variant runs
in a process of its own, pinned to as many CPUs as there are threads. A line a variant: the median, smallest and
largest mean of `--steps` steps over `--reps` repeats, in milliseconds, and the last loss.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

KEYS = ("context", "patch", "stride", "d", "heads", "layers", "ffn", "rows", "output")
CONFIGS = {
    name: dict(zip(KEYS, values))
    for name, values in {
        "seed": (24, 8, 4, 64, 4, 2, 256, 64 * 20, 1),
        "small": (336, 16, 8, 16, 4, 3, 128, 128 * 7, 96),
        "large": (336, 16, 8, 128, 16, 3, 256, 32 * 21, 96),
    }.items()
}
VARIANTS = ("torch-eager", "torch-compiled", "jax-jit")
POOL = 8  # random batches that rotate


def patches(c):
    return (c["context"] - c["patch"]) // c["stride"] + 1


def torch_step(c, threads, compiled):
    """A function from the number of the step to the loss, still on its way."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    d, heads = c["d"], c["heads"]

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.q, self.k, self.v, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
            self.ffn = nn.Sequential(nn.Linear(d, c["ffn"]), nn.GELU("tanh"), nn.Linear(c["ffn"], d))

        def forward(self, h):
            a = self.norm1(h)
            q, k, v = (p(a).unflatten(-1, (heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
            h = h + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return h + self.ffn(self.norm2(h))

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(c["patch"], d)
            self.pos = nn.Parameter(0.02 * torch.randn(patches(c), d))
            self.encoder = nn.Sequential(*(Encoder() for _ in range(c["layers"])))
            self.head = nn.Linear(patches(c) * d, c["output"])

        def forward(self, x, y):
            h = self.embed(x.unfold(-1, c["patch"], c["stride"])) + self.pos
            return F.mse_loss(self.head(self.encoder(h).flatten(1)), y)

    model = Forecaster()
    loss_of = torch.compile(model) if compiled else model
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True)
    batches = [(torch.randn(c["rows"], c["context"]), torch.randn(c["rows"], c["output"])) for _ in range(POOL)]

    def step(i):
        loss = loss_of(*batches[i % POOL])
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def jax_step(c):
    import jax
    import jax.numpy as jnp
    import optax

    d, heads, n = c["d"], c["heads"], patches(c)
    keys = iter(jax.random.split(jax.random.key(0), 1000))

    def uniform(*shape, bound):
        return jax.random.uniform(next(keys), shape, minval=-bound, maxval=bound)

    def new_linear(inputs, outputs):
        return {"w": uniform(inputs, outputs, bound=inputs**-0.5), "b": uniform(outputs, bound=inputs**-0.5)}

    def new_layer():
        norms = {name: {"w": jnp.ones(d), "b": jnp.zeros(d)} for name in ("norm1", "norm2")}
        return {**norms, **{p: new_linear(d, d) for p in "qkvo"},
                "ffn1": new_linear(d, c["ffn"]), "ffn2": new_linear(c["ffn"], d)}

    def linear(p, h):
        return h @ p["w"] + p["b"]

    def norm(p, h):
        h = h - h.mean(-1, keepdims=True)
        return h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]

    def loss_of(params, x, y):
        cut = jnp.arange(n)[:, None] * c["stride"] + jnp.arange(c["patch"])
        h = linear(params["embed"], x[:, cut]) + params["pos"]
        for p in params["layers"]:
            a = norm(p["norm1"], h)
            q, k, v = (linear(p[name], a).reshape(-1, n, heads, d // heads) for name in "qkv")
            h = h + linear(p["o"], jax.nn.dot_product_attention(q, k, v).reshape(-1, n, d))
            h = h + linear(p["ffn2"], jax.nn.gelu(linear(p["ffn1"], norm(p["norm2"], h)), approximate=True))
        return jnp.square(linear(params["head"], h.reshape(-1, n * d)) - y).mean()

    params = {"embed": new_linear(c["patch"], d), "pos": 0.02 * jax.random.normal(next(keys), (n, d)),
              "layers": [new_layer() for _ in range(c["layers"])], "head": new_linear(n * d, c["output"])}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.01))
    batches = [(jax.random.normal(next(keys), (c["rows"], c["context"])), jax.random.normal(next(keys), (c["rows"], c["output"])))
               for _ in range(POOL)]

    def update(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    update = jax.jit(update, donate_argnums=(0, 1))
    held = [params, optimizer.init(params)]

    def step(i):
        *held[:], loss = update(*held, *batches[i % POOL])
        return loss

    return step


def measure(config, variant, a):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])
    c = CONFIGS[config]
    step = jax_step(c) if variant == "jax-jit" else torch_step(c, a.threads, variant == "torch-compiled")
    for i in range(a.warmup):
        loss = float(step(i))
    times = []
    for _ in range(a.reps):
        start = time.perf_counter()
        for i in range(a.steps):
            loss = step(i)
        loss = float(loss)  # waits for the work
        times.append((time.perf_counter() - start) / a.steps * 1e3)
    print(f"{config:6} {variant:15} median {statistics.median(times):9.2f} ms  min {min(times):9.2f}  max {max(times):9.2f}"
          f"  loss {loss:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    configs, variants = a.configs.split(","), a.variants.split(",")
    for given, known in ((configs, CONFIGS), (variants, VARIANTS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = False
    for config in configs:
        for variant in variants:
            if a.here:
                measure(config, variant, a)
                continue
            one = [f"--{k}={v}" for k, v in {**vars(a), "configs": config, "variants": variant}.items() if k != "here"]
            if subprocess.run([sys.executable, __file__, "--here", *one]).returncode:
                print(f"{config:6} {variant:15} failed", flush=True)
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
