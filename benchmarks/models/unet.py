"""A U-Net (Ronneberger et al., 2015) with GroupNorm, as in diffusion models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax
from torch import Tensor, nn

from .case import Case, Weights
from .layers import NHWC, conv, max_pool

WIDTHS = (32, 64, 128)
GROUPS = 8
PIXELS, BATCH = 64, 2


class Block(nn.Module):
    """Twice convolution, GroupNorm and SiLU."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels_in, channels, 3, padding=1), nn.GroupNorm(GROUPS, channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, middle, bottom = WIDTHS
        self.down1, self.down2, self.bottom = Block(3, first), Block(first, middle), Block(middle, bottom)
        self.expand2, self.up2 = nn.ConvTranspose2d(bottom, middle, 2, 2), Block(2 * middle, middle)
        self.expand1, self.up1 = nn.ConvTranspose2d(middle, first, 2, 2), Block(2 * first, first)
        self.head = nn.Conv2d(first, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        middle = self.down2(F.max_pool2d(fine, 2))
        x = self.bottom(F.max_pool2d(middle, 2))
        x = self.up2(torch.cat([middle, self.expand2(x)], 1))
        x = self.up1(torch.cat([fine, self.expand1(x)], 1))
        return self.head(x)


def _group_norm(w: Weights, name: str, x: jax.Array) -> jax.Array:
    grouped = x.reshape(*x.shape[:-1], GROUPS, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = grouped.var((1, 2, 4), keepdims=True)
    normal = ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return normal * w[f"{name}.weight"] + w[f"{name}.bias"]


def jax_unet(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    def block(name: str, x: jax.Array) -> jax.Array:
        for i in (1, 2):
            x = jax.nn.silu(_group_norm(w, f"{name}.norm{i}", conv(w, f"{name}.conv{i}", x, padding=1)))
        return x

    def expand(name: str, x: jax.Array) -> jax.Array:
        y = lax.conv_transpose(x, w[f"{name}.weight"], (2, 2), "VALID", dimension_numbers=NHWC)
        return y + w[f"{name}.bias"]

    fine = block("down1", x)
    middle = block("down2", max_pool(fine, 2, 2))
    x = block("bottom", max_pool(middle, 2, 2))
    x = block("up2", jnp.concatenate([middle, expand("expand2", x)], -1))
    x = block("up1", jnp.concatenate([fine, expand("expand1", x)], -1))
    return conv(w, "head", x)


def _images() -> Tensor:
    return torch.randn(BATCH, 3, PIXELS, PIXELS)


CASES = [Case("unet", UNet, jax_unet, lambda: (_images(),), _images, images=True)]
