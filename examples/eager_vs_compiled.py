"""One model trained four ways, with one curve: `python examples/eager_vs_compiled.py` draws it in build/.

Eagerly on the device `jax`, compiled there, compiled on plain tensors, and in plain PyTorch: a small convolutional
network with batch normalization tells spirals that turn left from those that turn right.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from torch import nn

import jaten_ops  # noqa: F401  # the device jax

mpl.use("agg")
from matplotlib import pyplot as plt  # after the choice of what draws

SIDE = 16
WAYS = {
    "plain PyTorch": ("cpu", False),
    "compiled, plain tensors": ("cpu", True),
    "eager on jax": ("jax", False),
    "compiled on jax": ("jax", True),
}


def spirals(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of spirals with noise, [n, 1, SIDE, SIDE] in float32, and which way each turns, [n] in int64."""
    labels = torch.randint(2, (n,), generator=generator)
    turn = torch.rand(n, 1, generator=generator) * 2 * torch.pi
    along = torch.linspace(0, 1, 40)
    angle = turn + (labels[:, None] * 2 - 1) * along * 2 * torch.pi
    radius = along * (SIDE / 2 - 1)
    row = (SIDE / 2 + radius * angle.sin()).long()
    column = (SIDE / 2 + radius * angle.cos()).long()
    images = torch.zeros(n, SIDE * SIDE).scatter_(1, row * SIDE + column, 1.0).view(n, 1, SIDE, SIDE)
    return images + 0.3 * torch.randn(images.shape, generator=generator), labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(256, 2)),
    )


def train(device: str, compiled: bool, steps: int) -> list[float]:
    """The loss at each step."""
    generator = torch.Generator().manual_seed(0)
    model = network().to(device)
    run = torch.compile(model, backend="jaten") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        images, labels = spirals(64, generator)
        loss = nn.functional.cross_entropy(run(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--plot", type=Path, default=Path("build/eager_vs_compiled.png"))
    options = parser.parse_args()
    curves = {}
    for way, (device, compiled) in WAYS.items():
        curves[way] = train(device, compiled, options.steps)
        print(f"{way}: loss {curves[way][0]:.4f} at first, {curves[way][-1]:.4f} at last")
    reference = curves["plain PyTorch"]
    for way, losses in curves.items():
        apart = max(abs(a - b) for a, b in zip(losses, reference, strict=True))
        print(f"{way}: at most {apart:.1e} from plain PyTorch")
    figure, axes = plt.subplots(figsize=(7, 4))
    for (way, losses), style in zip(curves.items(), ("-", "--", "-.", ":"), strict=True):
        axes.plot(losses, style, label=way, linewidth=2.5)
    axes.set(xlabel="step", ylabel="loss", title="One model, trained four ways")
    axes.legend()
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.plot, dpi=120, bbox_inches="tight")
    print(f"written: {options.plot}")


if __name__ == "__main__":
    main()
