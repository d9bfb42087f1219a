"""An encoder of `nn.TransformerEncoder`, and convolutions with `nn.BatchNorm2d`: in torch, and in JAX."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from jax.sharding import PartitionSpec
from torch import Tensor, nn

LAYERS, HEADS, WIDTH, LENGTH, BATCH = 2, 4, 64, 16, 16
CHANNELS, SIDE = 32, 16
Weights = dict[str, jax.Array]
Put = Callable[[jax.Array, PartitionSpec], jax.Array]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def some_sequences() -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH)


def encoder_by_hand(weights: Weights, x: jax.Array, put: Put) -> jax.Array:
    """The mean square of what the encoder gives."""
    for i in range(LAYERS):
        w = {name.removeprefix(f"layers.{i}."): weight for name, weight in weights.items()}
        inputs = x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"]
        q, k, v = (part.reshape(*x.shape[:2], HEADS, -1) for part in jnp.split(inputs, 3, -1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = _normed(x + mixed @ w["self_attn.out_proj.weight"].T + w["self_attn.out_proj.bias"], w, "norm1")
        hidden = jax.nn.relu(x @ w["linear1.weight"].T + w["linear1.bias"])
        x = _normed(x + hidden @ w["linear2.weight"].T + w["linear2.bias"], w, "norm2")
    return jnp.mean(x * x)


def _normed(x: jax.Array, w: Weights, name: str) -> jax.Array:
    return jax.nn.standardize(x, epsilon=1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def convolutions() -> nn.Module:
    parts = [(3, CHANNELS), (CHANNELS, CHANNELS)]
    layers = [nn.Sequential(nn.Conv2d(m, n, 3, padding=1, bias=False), nn.BatchNorm2d(n), nn.ReLU()) for m, n in parts]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 8))


def some_images() -> Tensor:
    return torch.randn(BATCH, 3, SIDE, SIDE)


def convolutions_by_hand(weights: Weights, x: jax.Array, put: Put) -> jax.Array:
    """The mean square of what the convolutions give; the statistics are those of the batch."""
    for i in range(2):
        x = jax.lax.conv_general_dilated(x, weights[f"{i}.0.weight"], (1, 1), "SAME")
        mean = x.mean((0, 2, 3), keepdims=True)
        variance = ((x - mean) ** 2).mean((0, 2, 3), keepdims=True)
        scale, shift = (weights[f"{i}.1.{name}"][:, None, None] for name in ("weight", "bias"))
        x = jax.nn.relu((x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift)
    scores = x.mean((2, 3)) @ weights["4.weight"].T + weights["4.bias"]
    return jnp.mean(scores * scores)
