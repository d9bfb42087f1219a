"""Layers in plain JAX, of weights that are named as the torch module names them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .case import Weights

NHWC = ("NHWC", "HWIO", "NHWC")


def linear(w: Weights, name: str, x: jax.Array) -> jax.Array:
    y = x @ w[f"{name}.weight"]
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def conv(w: Weights, name: str, x: jax.Array, *, stride: int = 1, padding: int | str = 0, groups: int = 1) -> jax.Array:
    """A convolution of images, NHWC."""
    pads = padding if isinstance(padding, str) else [(padding, padding)] * 2
    kernel = w[f"{name}.weight"]
    y = lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=NHWC, feature_group_count=groups)
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def batch_norm(w: Weights, name: str, x: jax.Array, updates: Weights | None) -> jax.Array:
    """Over all axes but the last. In training the running statistics go to `updates`, with a momentum of 0.1."""
    mean, variance = w[f"{name}.running_mean"], w[f"{name}.running_var"]
    if updates is not None:
        axes = tuple(range(x.ndim - 1))
        count = x.size // x.shape[-1]
        running_mean, running_variance = mean, variance
        mean, variance = x.mean(axes), x.var(axes)
        updates[f"{name}.running_mean"] = 0.9 * running_mean + 0.1 * lax.stop_gradient(mean)
        unbiased = lax.stop_gradient(variance) * (count / (count - 1))
        updates[f"{name}.running_var"] = 0.9 * running_variance + 0.1 * unbiased
    scale = w[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
    return (x - mean) * scale + w[f"{name}.bias"]


def layer_norm(w: Weights, name: str, x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon) * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(w: Weights, name: str, x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon) * w[f"{name}.weight"]


def max_pool(x: jax.Array, window: int, stride: int, padding: int = 0) -> jax.Array:
    """NHWC."""
    pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    shape = ((1, window, window, 1), (1, stride, stride, 1))
    return lax.reduce_window(x, -jnp.inf, lax.max, *shape, pads)


def gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def mlp(w: Weights, name: str, x: jax.Array) -> jax.Array:
    """Up, GELU, down."""
    return linear(w, f"{name}.down", gelu(linear(w, f"{name}.up", x)))


def self_attention(
    w: Weights, name: str, x: jax.Array, heads: int, *, causal: bool = False, mask: jax.Array | None = None
) -> jax.Array:
    """Multi-head, queries, keys and values by one linear layer; x is (batch, length, width)."""
    batch, length, width = x.shape
    qkv = linear(w, f"{name}.qkv", x).reshape(batch, length, 3, heads, width // heads)
    mixed = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], mask=mask, is_causal=causal)
    return linear(w, f"{name}.out", mixed.reshape(batch, length, width))
