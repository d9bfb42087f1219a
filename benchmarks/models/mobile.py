"""MobileNetV2 (Sandler et al., 2018) and ConvNeXt-atto (Liu et al., 2022): depthwise convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, Weights
from .layers import batch_norm, conv, gelu, layer_norm, linear

CLASSES = 1000

# ---- MobileNetV2 ---------------------------------------------------------------------------------

STEM, LAST = 32, 1280
# expansion, channels, blocks, stride of the first
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
BLOCKS = tuple(
    (expansion, channels, stride if i == 0 else 1)
    for expansion, channels, count, stride in STAGES
    for i in range(count)
)


class ConvNorm(nn.Module):
    """Convolution, BatchNorm and, but for the last of a block, ReLU6."""

    def __init__(
        self, channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1, *, last: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return x if self.last else F.relu6(x)


class Bottleneck(nn.Module):
    def __init__(self, channels_in: int, channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        self.expand = ConvNorm(channels_in, hidden, 1) if expansion > 1 else None
        self.depthwise = ConvNorm(hidden, hidden, 3, stride, hidden)
        self.project = ConvNorm(hidden, channels, 1, last=True)
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        return x + y if self.residual else y


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM, 3, 2)
        sizes = zip((STEM, *(channels for _, channels, _ in BLOCKS)), BLOCKS, strict=False)
        self.blocks = nn.Sequential(*(Bottleneck(before, c, e, s) for before, (e, c, s) in sizes))
        self.last = ConvNorm(BLOCKS[-1][1], LAST, 1)
        self.head = nn.Linear(LAST, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.blocks(self.stem(x)))
        return self.head(x.mean((2, 3)))


def jax_mobilenet(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    def conv_norm(name: str, x: jax.Array, kernel: int, stride: int = 1, groups: int = 1) -> jax.Array:
        x = conv(w, f"{name}.conv", x, stride=stride, padding=kernel // 2, groups=groups)
        return batch_norm(w, f"{name}.norm", x, updates)

    x = jax.nn.relu6(conv_norm("stem", x, 3, 2))
    for i, (expansion, channels, stride) in enumerate(BLOCKS):
        name, y = f"blocks.{i}", x
        if expansion > 1:
            y = jax.nn.relu6(conv_norm(f"{name}.expand", y, 1))
        y = jax.nn.relu6(conv_norm(f"{name}.depthwise", y, 3, stride, y.shape[-1]))
        y = conv_norm(f"{name}.project", y, 1)
        x = x + y if stride == 1 and x.shape[-1] == channels else y
    x = jax.nn.relu6(conv_norm("last", x, 1))
    return linear(w, "head", x.mean((1, 2)))


# ---- ConvNeXt-atto -------------------------------------------------------------------------------

WIDTHS, DEPTHS = (40, 80, 160, 320), (2, 2, 6, 2)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of NCHW."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, WIDTHS[0], 4, 4), LayerNorm2d(WIDTHS[0])
        self.shrink_norms = nn.ModuleList(LayerNorm2d(width) for width in WIDTHS[:-1])
        self.shrinks = nn.ModuleList(nn.Conv2d(a, b, 2, 2) for a, b in itertools.pairwise(WIDTHS))
        stages = zip(WIDTHS, DEPTHS, strict=True)
        self.stages = nn.ModuleList(nn.Sequential(*(NextBlock(w) for _ in range(depth))) for w, depth in stages)
        self.norm, self.head = nn.LayerNorm(WIDTHS[-1]), nn.Linear(WIDTHS[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x))
        for i, stage in enumerate(self.stages):
            if i:
                x = self.shrinks[i - 1](self.shrink_norms[i - 1](x))
            x = stage(x)
        return self.head(self.norm(x.mean((2, 3))))


def jax_convnext(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    x = layer_norm(w, "stem_norm", conv(w, "stem", x, stride=4))
    for stage, depth in enumerate(DEPTHS):
        if stage:
            x = conv(w, f"shrinks.{stage - 1}", layer_norm(w, f"shrink_norms.{stage - 1}", x), stride=2)
        for i in range(depth):
            name = f"stages.{stage}.{i}"
            y = conv(w, f"{name}.depthwise", x, padding=3, groups=x.shape[-1])
            y = gelu(linear(w, f"{name}.up", layer_norm(w, f"{name}.norm", y)))
            x = x + w[f"{name}.scale"] * linear(w, f"{name}.down", y)
    return linear(w, "head", layer_norm(w, "norm", jnp.mean(x, (1, 2))))


def _case(name: str, model: type[nn.Module], jax_model: Callable[..., Any], pixels: int, batch: int) -> Case:
    return Case(
        name,
        model,
        jax_model,
        lambda: (torch.randn(batch, 3, pixels, pixels),),
        lambda: torch.randint(CLASSES, (batch,)),
        images=True,
    )


CASES = [
    _case("mobilenetv2", MobileNet, jax_mobilenet, 128, 2),
    _case("convnext-atto", ConvNeXt, jax_convnext, 128, 2),
]
