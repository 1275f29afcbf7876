"""A training step of PatchTST or of attention across assets in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

POOL = 16  # random batches that rotate


class Encoder(nn.Module):
    """A pre-norm layer; `across` assets, queries and keys have length one and each head a temperature."""

    def __init__(self, c, across):
        super().__init__()
        d, self.heads = c["d"], c["heads"]
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.Linear(d, c["ffn"]), nn.GELU("tanh"), nn.Linear(c["ffn"], d))
        self.temperature = nn.Parameter(torch.full((self.heads, 1, 1), 10.0)) if across else None

    def forward(self, h):
        a = self.norm1(h)
        q, k, v = (p(a).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        scale = None
        if self.temperature is not None:
            q, k, scale = F.normalize(q, dim=-1) * self.temperature.to(q.dtype), F.normalize(k, dim=-1), 1.0
        h = h + self.o(F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(2))
        return h + self.ffn(self.norm2(h))


class Forecaster(nn.Module):
    """PatchTST and its mean squared error."""

    def __init__(self, c):
        super().__init__()
        self.patch, self.stride = c["patch"], c["stride"]
        patches = (c["context"] - c["patch"]) // c["stride"] + 1
        self.embed = nn.Linear(c["patch"], c["d"])
        self.pos = nn.Parameter(0.02 * torch.randn(patches, c["d"]))
        self.encoder = nn.Sequential(*(Encoder(c, across=False) for _ in range(c["layers"])))
        self.head = nn.Linear(patches * c["d"], c["output"])

    def forward(self, x, y):
        h = self.embed(x.unfold(-1, self.patch, self.stride)) + self.pos
        return F.mse_loss(self.head(self.encoder(h).flatten(1)), y)


class CrossAsset(nn.Module):
    """Attention across assets and its cross-entropy."""

    def __init__(self, c):
        super().__init__()
        d, features = c["d"], c["features"]
        self.weight = nn.Parameter(torch.randn(c["sources"], features, d) * features**-0.5)
        self.bias = nn.Parameter(torch.zeros(c["sources"], d))
        self.encoder = nn.Sequential(*(Encoder(c, across=True) for _ in range(c["layers"])))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, c["classes"])

    def forward(self, x, y):
        h = torch.einsum("bsf,sfd->bsd", x, self.weight) + self.bias
        return F.cross_entropy(self.head(self.norm(self.encoder(h))).flatten(0, 1).float(), y.flatten())


def batch(c, device):
    if "sources" in c:
        x = torch.randn(c["rows"], c["sources"], c["features"], device=device)
        return x, torch.randint(c["classes"], (c["rows"], c["sources"]), device=device)
    return tuple(torch.randn(c["rows"], c[length], device=device) for length in ("context", "output"))


def torch_step(c, variant, a, wrap=None):
    """A function from the number of the step to the loss, still on its way. `wrap` takes the model and returns it as one rank's
    part of a model that several ranks train."""
    if a.device == "cpu":
        torch.set_num_threads(a.threads)
    torch.set_float32_matmul_precision("highest" if a.precision == "f32" else "high")
    torch.manual_seed(0)
    graph = variant.endswith("graph")
    model = (CrossAsset(c) if "sources" in c else Forecaster(c)).to(a.device)
    if wrap is not None:
        model = wrap(model)
    loss_of = torch.compile(model) if "compiled" in variant else model
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True, capturable=graph)
    batches = [batch(c, a.device) for _ in range(POOL)]

    def update(x, y):
        with torch.autocast(a.device, torch.bfloat16, enabled=a.precision == "bf16"):
            loss = loss_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    if graph:
        # Distributed models change their buckets in the first ten steps.
        update = captured(update, batches[0], warmups=3 if wrap is None else 12)
    return lambda i: update(*batches[i % POOL])


def captured(update, batch, warmups):
    """`update` as a CUDA graph that reads its batch from memory of its own."""
    inputs = [t.clone() for t in batch]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):  # compiles, and makes what the optimizer keeps
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
