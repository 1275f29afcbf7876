"""A training step of PatchTST or of attention across assets in JAX."""

import os

POOL = 16  # random batches that rotate


def jax_step(c, a):
    """A function from the number of the step to the loss, still on its way."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # gpu.py has other programs ready on the same GPU
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_platforms", a.device)
    if a.device == "cuda":
        names = {"f32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}
        jax.config.update("jax_default_matmul_precision", names[a.precision])
    dtype = jnp.bfloat16 if a.precision == "bf16" else jnp.float32
    across = "sources" in c
    d, heads = c["d"], c["heads"]
    keys = iter(jax.random.split(jax.random.key(0), 1000))

    def uniform(*shape, bound):
        return jax.random.uniform(next(keys), shape, minval=-bound, maxval=bound)

    def normal(*shape):
        return jax.random.normal(next(keys), shape)

    def new_linear(inputs, outputs):
        return {"w": uniform(inputs, outputs, bound=inputs**-0.5), "b": uniform(outputs, bound=inputs**-0.5)}

    def new_norm():
        return {"w": jnp.ones(d), "b": jnp.zeros(d)}

    def new_layer():
        layer = {"norm1": new_norm(), "norm2": new_norm(), **{p: new_linear(d, d) for p in "qkvo"},
                 "ffn1": new_linear(d, c["ffn"]), "ffn2": new_linear(c["ffn"], d)}
        return layer | {"temperature": jnp.full((heads, 1), 10.0)} if across else layer

    def linear(p, h):
        return h @ p["w"].astype(dtype) + p["b"].astype(dtype)

    def norm(p, h):
        h = h.astype(jnp.float32)
        h = h - h.mean(-1, keepdims=True)
        h = h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]
        return h.astype(dtype)

    def unit(h):
        length = jnp.linalg.norm(h.astype(jnp.float32), axis=-1, keepdims=True)
        return h / jnp.maximum(length, 1e-12).astype(h.dtype)

    def encoder(layers, h):
        n = h.shape[1]
        for p in layers:
            a = norm(p["norm1"], h)
            q, k, v = (linear(p[name], a).reshape(-1, n, heads, d // heads) for name in "qkv")
            scale = None
            if across:
                q, k, scale = unit(q) * p["temperature"].astype(dtype), unit(k), 1.0
            h = h + linear(p["o"], jax.nn.dot_product_attention(q, k, v, scale=scale).reshape(-1, n, d))
            h = h + linear(p["ffn2"], jax.nn.gelu(linear(p["ffn1"], norm(p["norm2"], h)), approximate=True))
        return h

    def cross_entropy(params, x, y):
        h = jnp.einsum("bsf,sfd->bsd", x.astype(dtype), params["w"].astype(dtype)) + params["b"].astype(dtype)
        logits = linear(params["head"], norm(params["norm"], encoder(params["layers"], h))).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def squared_error(params, x, y):
        n = params["pos"].shape[0]
        cut = jnp.arange(n)[:, None] * c["stride"] + jnp.arange(c["patch"])
        h = linear(params["embed"], x[:, cut].astype(dtype)) + params["pos"].astype(dtype)
        h = encoder(params["layers"], h).reshape(-1, n * d)
        return jnp.square(linear(params["head"], h).astype(jnp.float32) - y).mean()

    layers = [new_layer() for _ in range(c["layers"])]
    if across:
        loss_of, sources, features = cross_entropy, c["sources"], c["features"]
        params = {"w": features**-0.5 * normal(sources, features, d), "b": jnp.zeros((sources, d)), "layers": layers,
                  "norm": new_norm(), "head": new_linear(d, c["classes"])}
        batches = [(normal(c["rows"], sources, features),
                    jax.random.randint(next(keys), (c["rows"], sources), 0, c["classes"])) for _ in range(POOL)]
    else:
        loss_of, n = squared_error, (c["context"] - c["patch"]) // c["stride"] + 1
        params = {"embed": new_linear(c["patch"], d), "pos": 0.02 * normal(n, d), "layers": layers,
                  "head": new_linear(n * d, c["output"])}
        batches = [tuple(normal(c["rows"], c[length]) for length in ("context", "output")) for _ in range(POOL)]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.01))

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
