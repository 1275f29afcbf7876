"""A training step of whole models that users write: a GPT, a ResNet, recurrent layers and others, beside PyTorch, as a table in Markdown.

    pip install torch
    cargo build --release -p refrain-nn --example models
    python bench/models.py [--device cpu|cuda] [--precisions f32,tf32,bf16] [--threads 2] [--rounds 2] [--only lstm] [--compiled]
                           [--refrain target/release/examples/models]

`crates/refrain-nn/examples/models.rs` has the models in refrain, with their sizes; here they are in PyTorch, of its own layers. A step
is forward and backward pass, clipping of the gradients' norm at 1, and AdamW, on one random batch; refrain's is recorded, PyTorch's eager
code and, on a GPU, the whole of it in a CUDA graph, with --compiled also after torch.compile. Each time is the median of 5 repeats,
and the table has the median over the rounds, in microseconds. The ratio is refrain's time to the fastest one of PyTorch: below 1, refrain
is faster. bf16 is autocast in PyTorch. On a CPU every program runs pinned to as many CPUs as there are threads.
"""

import argparse
import math
import os
import statistics
import sys
import time

import table

REPEATS, SHORTEST = 5, 0.1
PRECISIONS = ("f32", "tf32", "bf16")


def models():
    """Name to a function from the device to the model, which computes the loss of its batch."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Encoder(nn.Module):
        """A pre-norm layer with heads of 64."""

        def __init__(self, width, causal, dropout):
            super().__init__()
            self.heads, self.causal, self.drop = width // 64, causal, nn.Dropout(dropout)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + self.drop(self.o(y.transpose(1, 2).flatten(2)))
            return x + self.drop(self.down(self.drop(F.gelu(self.up(self.norm2(x))))))

    class Gpt(nn.Module):
        def __init__(self, device, vocabulary, context, width, layers, batch):
            super().__init__()
            self.tokens, self.places, self.drop = nn.Embedding(vocabulary, width), nn.Embedding(context, width), nn.Dropout(0.1)
            self.layers = nn.Sequential(*(Encoder(width, True, 0.1) for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            text = torch.randint(vocabulary, (batch, context + 1), device=device)
            self.input, self.next = text[:, :-1].contiguous(), text[:, 1:].contiguous()
            self.positions = torch.arange(context, device=device)

        def forward(self):
            x = self.drop(self.tokens(self.input) + self.places(self.positions))
            return F.cross_entropy(self.head(self.norm(self.layers(x))).flatten(0, 1), self.next.flatten())

    class RotaryBlock(nn.Module):
        def __init__(self, width, hidden):
            super().__init__()
            self.heads = width // 64
            self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
            # The attention of refrain has biases.
            self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, hidden), (width, hidden), (hidden, width)))

        def forward(self, x, cos, sin):
            q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

            def turned(x):
                a, b = x.chunk(2, -1)
                return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)

            y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            y = self.norm2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self, device, vocabulary=32000, context=512, width=512, hidden=1376, batch=8):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(RotaryBlock(width, hidden) for _ in range(4))
            self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
            angles = torch.outer(torch.arange(context), 10000 ** -(torch.arange(0, 64, 2) / 64)).repeat(1, 2).to(device)
            self.cos, self.sin = angles.cos(), angles.sin()
            text = torch.randint(vocabulary, (batch, context + 1), device=device)
            self.input, self.next = text[:, :-1].contiguous(), text[:, 1:].contiguous()

        def forward(self):
            x = self.tokens(self.input)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), self.next.flatten())

    class VisionTransformer(nn.Module):
        def __init__(self, device, batch=128, width=192, classes=10):
            super().__init__()
            self.patches = nn.Conv2d(3, width, 4, stride=4)
            self.token, self.places = nn.Parameter(0.02 * torch.randn(1, 1, width)), nn.Parameter(0.02 * torch.randn(65, width))
            self.layers = nn.Sequential(*(Encoder(width, False, 0.0) for _ in range(6)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
            self.images = torch.randn(batch, 3, 32, 32, device=device)
            self.labels = torch.randint(classes, (batch,), device=device)

        def forward(self):
            x = self.patches(self.images).flatten(2).transpose(1, 2)
            x = torch.cat((self.token.expand(len(x), 1, -1).to(x.dtype), x), 1) + self.places
            return F.cross_entropy(self.head(self.norm(self.layers(x))[:, 0]), self.labels)

    def conv_norm(inputs, outputs, kernel, stride):
        return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))

    class Block(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            stride = 1 if inputs == outputs else 2
            self.first, self.second = conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, 3, 1)
            self.shortcut = conv_norm(inputs, outputs, 1, 2) if stride == 2 else nn.Identity()

        def forward(self, x):
            return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))

    class ResNet(nn.Module):
        def __init__(self, device, batch=128, classes=10):
            super().__init__()
            widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
            self.layers = nn.Sequential(conv_norm(3, 64, 3, 1), nn.ReLU(), *(Block(a, b) for a, b in zip(widths, widths[1:])))
            self.head = nn.Linear(512, classes)
            self.images = torch.randn(batch, 3, 32, 32, device=device)
            self.labels = torch.randint(classes, (batch,), device=device)

        def forward(self):
            return F.cross_entropy(self.head(self.layers(self.images).mean((2, 3))), self.labels)

    class Autoencoder(nn.Module):
        def __init__(self, device):
            super().__init__()
            sizes, layers = [3, 32, 64, 128], []
            for a, b in zip(sizes, sizes[1:]):
                layers += [nn.Conv2d(a, b, 4, 2, 1), nn.ReLU()]
            for a, b in zip(sizes[::-1], sizes[-2::-1]):
                layers += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.ReLU()]
            self.layers = nn.Sequential(*layers[:-1])
            self.images = torch.randn(64, 3, 64, 64, device=device)

        def forward(self):
            return F.mse_loss(self.layers(self.images), self.images)

    class TemporalConvolutions(nn.Module):
        def __init__(self, device, batch=64, inputs=16, channels=64, length=256):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv1d(channels if i else inputs, channels, 3, dilation=2**i) for i in range(6))
            self.drop, self.head = nn.Dropout(0.1), nn.Linear(channels, 1)
            self.series, self.targets = torch.randn(batch, inputs, length, device=device), torch.randn(batch, 1, device=device)

        def forward(self):
            x = self.series
            for i, conv in enumerate(self.convs):
                y = self.drop(torch.relu(conv(F.pad(x, (2 * 2**i, 0)))))
                x = x + y if i else y
            return F.mse_loss(self.head(x[:, :, -1]), self.targets)

    class Recurrent(nn.Module):
        def __init__(self, device, kind, batch=128, length=96, horizon=24):
            super().__init__()
            self.layers, self.head = kind(32, 128, num_layers=2, batch_first=True), nn.Linear(128, horizon)
            self.series, self.targets = torch.randn(batch, length, 32, device=device), torch.randn(batch, horizon, device=device)

        def forward(self):
            return F.mse_loss(self.head(self.layers(self.series)[0][:, -1]), self.targets)

    class Mlp(nn.Module):
        def __init__(self, device, batch=1024, classes=10):
            super().__init__()
            layers, sizes = [], [100, 512, 512, 512]
            for a, b in zip(sizes, sizes[1:]):
                layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.1)]
            self.layers = nn.Sequential(*layers, nn.Linear(512, classes))
            self.table, self.labels = torch.randn(batch, 100, device=device), torch.randint(classes, (batch,), device=device)

        def forward(self):
            return F.cross_entropy(self.layers(self.table), self.labels)

    class TwoTowers(nn.Module):
        def __init__(self, device, batch=4096, width=64):
            super().__init__()
            self.tables, self.layers, self.ids = nn.ModuleList(), nn.ModuleList(), []
            for count in (100_000, 20_000):
                self.tables.append(nn.Embedding(count, width))
                self.layers.append(nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, width)))
                self.ids.append(torch.randint(count, (batch,), device=device))
            self.ratings = torch.randn(batch, device=device)

        def forward(self):
            a, b = (layers(table(ids)) for table, layers, ids in zip(self.tables, self.layers, self.ids))
            return F.mse_loss((a * b).sum(-1), self.ratings)

    return {
        "gpt of characters": lambda device: Gpt(device, vocabulary=65, context=256, width=384, layers=6, batch=64),
        "gpt of words": lambda device: Gpt(device, vocabulary=50257, context=256, width=512, layers=4, batch=16),
        "llama": Llama,
        "vision transformer": VisionTransformer,
        "resnet-18": ResNet,
        "autoencoder": Autoencoder,
        "temporal convolutions": TemporalConvolutions,
        "lstm": lambda device: Recurrent(device, nn.LSTM),
        "gru": lambda device: Recurrent(device, nn.GRU),
        "mlp": Mlp,
        "two towers": TwoTowers,
    }


def torch_times(a):
    """Prints a line per model, precision and way, as the example does."""
    import torch

    gpu = a.device == "cuda"
    if gpu:
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for name, build in models().items():
        if not name.startswith(a.only):
            continue
        for precision in a.precisions:
            for way in ("eager", *["graph"] * gpu, *["compiled"] * a.compiled):
                try:
                    us = torch_time(torch, build, precision, way, a)
                except Exception as error:
                    print(f"{name} {precision} {way}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
                    continue
                print(f"{name}\t{precision}\t{way}\t{us:.3f}", flush=True)


def torch_time(torch, build, precision, way, a):
    torch.manual_seed(1)
    tf32 = precision != "f32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model = build(a.device).to(a.device)
    parameters = list(model.parameters())
    gpu = a.device == "cuda"
    in_graph = gpu and way != "eager"
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=True, capturable=in_graph)
    loss_of = torch.compile(model) if way == "compiled" else model

    def update():
        with torch.autocast(a.device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=not in_graph):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    step = update
    if in_graph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                update()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = update()
        step = graph.replay

    def run(calls):
        if gpu:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            step()
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    run(3)
    calls = min(1000, max(1, math.ceil(SHORTEST / (run(4) / 4))))
    return statistics.median(run(calls) / calls * 1e6 for _ in range(REPEATS))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--precisions", type=table.some_of(PRECISIONS), help="without, f32 on a CPU and all on a GPU")
    p.add_argument("--threads", type=int, default=2, help="on a CPU")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--only", default="", metavar="NAME", help="measure only models whose name begins so")
    p.add_argument("--compiled", action="store_true", help="PyTorch after torch.compile, too; that takes minutes")
    p.add_argument("--refrain", type=table.program, default=table.ROOT / "target/release/examples/models", help="the program")
    p.add_argument("--torch", action="store_true", help="measure PyTorch alone, in this process")
    a = p.parse_args()
    gpu = a.device == "cuda"
    a.precisions = a.precisions or (list(PRECISIONS) if gpu else ["f32"])
    if a.torch:
        return torch_times(a)

    commands = {
        "refrain": (a.refrain, a.device, *a.precisions, *[a.only] * bool(a.only)),
        "torch": (sys.executable, __file__, "--torch", "--device", a.device, "--precisions", ",".join(a.precisions), "--only", a.only,
                  *["--compiled"] * a.compiled),
    }
    threads = os.cpu_count() if gpu else a.threads
    env = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    times = {}
    for _ in range(a.rounds):
        for program, command in commands.items():
            printed = table.output(program, command, env=env, preexec_fn=lambda: os.sched_setaffinity(0, range(threads)))
            for line in (printed or "").splitlines():
                name, precision, *way, us = line.split("\t")
                times.setdefault((name, precision), {}).setdefault((program, *way), []).append(float(us))
    table.machine(gpu=gpu)
    ways = [("refrain",), ("torch", "eager"), *[("torch", "graph")] * gpu, *[("torch", "compiled")] * a.compiled]
    shown = ["refrain", *(f"PyTorch {way}" for _, way in ways[1:])]
    print(f"| model | precision | {' | '.join(shown)} | ratio |\n{'| --- ' * (len(ways) + 3)}|")
    for (name, precision), of in times.items():
        medians = {way: statistics.median(of[way]) for way in ways if way in of}
        others = [us for way, us in medians.items() if way != ("refrain",)]
        mine = medians.get(("refrain",))
        ratio = f"{mine / min(others):.2f}" if mine and others else ""
        cells = (f"{medians[way]:,.0f}" if way in medians else "" for way in ways)
        print(f"| {name} | {precision} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    main()
