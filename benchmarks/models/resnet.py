"""ResNet-18 (He et al., 2015)."""

from __future__ import annotations

import jax
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, Weights
from .layers import batch_norm, conv, linear, max_pool

CLASSES = 1000
WIDTHS = (64, 128, 256, 512)
DEPTH = 2


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = None
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, WIDTHS[0], 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTHS[0])
        blocks: list[nn.Module] = []
        channels = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            for i in range(DEPTH):
                blocks.append(Block(channels, width, 2 if stage and not i else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


def _jax_block(w: Weights, name: str, x: jax.Array, stride: int, updates: Weights | None) -> jax.Array:
    y = conv(w, f"{name}.conv1", x, stride=stride, padding=1)
    y = jax.nn.relu(batch_norm(w, f"{name}.norm1", y, updates))
    y = batch_norm(w, f"{name}.norm2", conv(w, f"{name}.conv2", y, padding=1), updates)
    if f"{name}.shortcut.0.weight" in w:
        x = batch_norm(w, f"{name}.shortcut.1", conv(w, f"{name}.shortcut.0", x, stride=stride), updates)
    return jax.nn.relu(x + y)


def jax_resnet(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(batch_norm(w, "norm", conv(w, "conv", x, stride=2, padding=3), updates))
    x = max_pool(x, 3, 2, 1)
    for i in range(DEPTH * len(WIDTHS)):
        x = _jax_block(w, f"blocks.{i}", x, 2 if i and i % DEPTH == 0 else 1, updates)
    return linear(w, "head", x.mean((1, 2)))


def _case(pixels: int, batch: int) -> Case:
    return Case(
        f"resnet18-{pixels}",
        ResNet,
        jax_resnet,
        lambda: (torch.randn(batch, 3, pixels, pixels),),
        lambda: torch.randint(CLASSES, (batch,)),
        images=True,
    )


CASES = [_case(224, 1), _case(64, 2)]
