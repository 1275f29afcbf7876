"""One full PatchTST training step in PyTorch and JAX, on the CPU or on one NVIDIA GPU.

    pip install torch jax optax        # torch-compiled needs a C++ compiler; a GPU: "jax[cuda13]"
    python bench/peers.py [--device cpu] [--precision f32] [--configs seed,small,large] [--variants ...]
                          [--threads 2] [--warmup N] [--steps N] [--reps 5] [--json]

A step is forward, MSE, backward, clipping of the global gradient norm at 1.0 and AdamW (lr 1e-3, weight decay
0.01) on random batches that lie in the device's memory and rotate; the model is that of `refrain bench step`. Each
variant runs in a process of its own, on the CPU pinned to as many CPUs as there are threads. A line a variant: the
median, smallest and largest mean of `--steps` steps over `--reps` repeats, in microseconds, and the last loss.

| variant | device | what it is |
| --- | --- | --- |
| torch-eager | both | PyTorch with its fused AdamW |
| torch-compiled | cpu | the model through torch.compile |
| torch-graph | cuda | the whole step, AdamW with it, captured in a CUDA graph |
| torch-compiled-graph | cuda | the same of the model through torch.compile |
| jax-jit | both | the whole step through jax.jit |

tf32 (GPU alone) lets matrix products round their operands to TF32. bf16 is autocast in PyTorch; in JAX activations
are bf16, while parameters, norms and the loss are f32. f32 is strict on both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from table import some_of

KEYS = ("context", "patch", "stride", "d", "heads", "layers", "ffn", "rows", "output")
CONFIGS = {
    name: dict(zip(KEYS, values))
    for name, values in {
        "seed": (24, 8, 4, 64, 4, 2, 256, 64 * 20, 1),
        "small": (336, 16, 8, 16, 4, 3, 128, 128 * 7, 96),
        "large": (336, 16, 8, 128, 16, 3, 256, 32 * 21, 96),
    }.items()
}
VARIANTS = {
    "cpu": ("torch-eager", "torch-compiled", "jax-jit"),
    "cuda": ("torch-eager", "torch-graph", "torch-compiled-graph", "jax-jit"),
}
PRECISIONS = ("f32", "tf32", "bf16")
DEFAULTS = {"cpu": {"warmup": 5, "steps": 20}, "cuda": {"warmup": 30, "steps": 200}}
POOL = 16  # random batches that rotate


def patches(c):
    return (c["context"] - c["patch"]) // c["stride"] + 1


def torch_step(c, variant, a):
    """A function from the number of the step to the loss, still on its way."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    if a.device == "cpu":
        torch.set_num_threads(a.threads)
    torch.set_float32_matmul_precision("highest" if a.precision == "f32" else "high")
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

    graph = variant.endswith("graph")
    model = Forecaster().to(a.device)
    loss_of = torch.compile(model) if "compiled" in variant else model
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True, capturable=graph)
    batches = [tuple(torch.randn(c["rows"], c[length], device=a.device) for length in ("context", "output"))
               for _ in range(POOL)]

    def update(x, y):
        with torch.autocast(a.device, torch.bfloat16, enabled=a.precision == "bf16"):
            loss = loss_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    if graph:
        update = captured(update, batches[0])
    return lambda i: update(*batches[i % POOL])


def captured(update, batch):
    """`update` as a CUDA graph that reads its batch from memory of its own."""
    import torch

    inputs = [t.clone() for t in batch]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles, and makes what the optimizer keeps
            update(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = update(*inputs)

    def replay(*batch):
        for mine, given in zip(inputs, batch):
            mine.copy_(given)
        graph.replay()
        return loss

    replay.of = update  # keeps alive the parameters, optimizer state and kernels that the graph points to
    return replay


def jax_step(c, a):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs wait on the same GPU
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_platforms", a.device)
    if a.device == "cuda":
        names = {"f32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}
        jax.config.update("jax_default_matmul_precision", names[a.precision])
    dtype = jnp.bfloat16 if a.precision == "bf16" else jnp.float32
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
        return h @ p["w"].astype(dtype) + p["b"].astype(dtype)

    def norm(p, h):
        h = h.astype(jnp.float32)
        h = h - h.mean(-1, keepdims=True)
        h = h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]
        return h.astype(dtype)

    def loss_of(params, x, y):
        cut = jnp.arange(n)[:, None] * c["stride"] + jnp.arange(c["patch"])
        h = linear(params["embed"], x[:, cut].astype(dtype)) + params["pos"].astype(dtype)
        for p in params["layers"]:
            a = norm(p["norm1"], h)
            q, k, v = (linear(p[name], a).reshape(-1, n, heads, d // heads) for name in "qkv")
            h = h + linear(p["o"], jax.nn.dot_product_attention(q, k, v).reshape(-1, n, d))
            h = h + linear(p["ffn2"], jax.nn.gelu(linear(p["ffn1"], norm(p["norm2"], h)), approximate=True))
        return jnp.square(linear(params["head"], h.reshape(-1, n * d)).astype(jnp.float32) - y).mean()

    params = {"embed": new_linear(c["patch"], d), "pos": 0.02 * jax.random.normal(next(keys), (n, d)),
              "layers": [new_layer() for _ in range(c["layers"])], "head": new_linear(n * d, c["output"])}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.01))
    batches = [tuple(jax.random.normal(next(keys), (c["rows"], c[length])) for length in ("context", "output"))
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
    if a.device == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])
    c = CONFIGS[config]
    step = jax_step(c, a) if variant == "jax-jit" else torch_step(c, variant, a)
    if not a.wait:
        return report(config, variant, step, a)
    float(step(0))
    print("ready", flush=True)
    for _ in sys.stdin:
        report(config, variant, step, a)


def report(config, variant, step, a):
    for i in range(a.warmup):
        loss = float(step(i))
    times = []
    for _ in range(a.reps):
        start = time.perf_counter()
        for i in range(a.steps):
            loss = step(i)
        loss = float(loss)  # waits for the work
        times.append((time.perf_counter() - start) / a.steps * 1e6)
    median = statistics.median(times)
    if a.json:
        print(json.dumps({"config": config, "variant": variant, "precision": a.precision, "device": a.device,
                          "steps": a.steps, "repeats": a.reps, "median_us": median, "min_us": min(times),
                          "max_us": max(times), "last_loss": loss}), flush=True)
    else:
        print(f"{config:6} {variant:21} {a.precision:5} median {median:9.1f} us  min {min(times):9.1f}"
              f"  max {max(times):9.1f}  loss {loss:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=VARIANTS, default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--configs", type=some_of(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--variants", help="the device's, separated by commas; all without it")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--warmup", type=int, help="5 on the CPU, 30 on a GPU")
    parser.add_argument("--steps", type=int, help="steps a repeat; 20 on the CPU, 200 on a GPU")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="a line of JSON a variant")
    parser.add_argument("--here", action="store_true", help="in this process: one configuration and variant")
    parser.add_argument("--wait", action="store_true", help="with --here: say ready, then measure once a line of input")
    a = parser.parse_args()
    for name, value in DEFAULTS[a.device].items():
        if getattr(a, name) is None:
            setattr(a, name, value)
    try:
        variants = some_of(VARIANTS[a.device])(a.variants) if a.variants else VARIANTS[a.device]
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --variants: {error}")
    if a.device == "cpu" and a.precision == "tf32":
        parser.error("tf32 is the GPU's; choose f32 or bf16 on the CPU")
    if a.here:
        if len(a.configs) != 1 or len(variants) != 1:
            parser.error("--here takes one configuration and one variant")
        return measure(a.configs[0], variants[0], a)
    common = [f"--{name}={getattr(a, name)}" for name in ("device", "precision", "threads", "warmup", "steps", "reps")]
    failed = False
    for config in a.configs:
        for variant in variants:
            one = ["--configs", config, "--variants", variant, *(["--json"] if a.json else [])]
            if subprocess.run([sys.executable, __file__, "--here", *common, *one]).returncode:
                print(f"{config:6} {variant:21} {a.precision:5} failed", file=sys.stderr, flush=True)
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
