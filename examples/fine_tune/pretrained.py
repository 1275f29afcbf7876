"""Trains a small classifier with PyTorch and writes data/pretrained.safetensors, which the example fine-tunes.

    pip install torch numpy safetensors && python pretrained.py

It tells four kinds of images of 8 x 8 numbers apart: a bright row, a bright column, the diagonal, the other diagonal; in noise.
The file has the names of PyTorch, `features.0.weight` and so on, and two tensors to compare with: `check.input`, some images, and
`check.features`, what `features` makes of them.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

SIZE = 8


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.classifier = nn.Linear(32, 4)

    def forward(self, x):
        return self.classifier(self.features(x))


def batch(count):
    kinds, places = torch.randint(0, 4, (count,)), torch.randint(0, SIZE, (count,))
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    at = places[:, None, None]
    every = torch.stack([
        (rows == at),
        (columns == at),
        (rows == columns).expand(count, -1, -1),
        (rows + columns == SIZE - 1).expand(count, -1, -1),
    ])
    images = every[kinds, torch.arange(count)].float()
    return (images + 0.4 * torch.randn_like(images)).flatten(1), kinds


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(600):
    x, kinds = batch(128)
    loss = F.cross_entropy(model(x), kinds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
x, kinds = batch(1000)
print(f"right: {(model(x).argmax(1) == kinds).float().mean():.3f}")
tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
with torch.no_grad():
    tensors["check.input"] = x[:4].clone()
    tensors["check.features"] = model.features(x[:4])
path = Path(__file__).with_name("data") / "pretrained.safetensors"
path.parent.mkdir(exist_ok=True)
save_file(tensors, path)
print(f"{path.name}: {path.stat().st_size} bytes")
