"""The models, each written twice: as a torch module, and as a plain JAX function of the module's own weights.

A JAX function takes the module's state dict (name -> array), the input and whether it trains, and gives the output and
the buffers that have changed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Weights = dict[str, jax.Array]
JaxModel = Callable[[Weights, jax.Array, bool], tuple[jax.Array, Weights]]


@dataclass(frozen=True)
class Model:
    name: str
    torch_model: Callable[[], nn.Module]
    jax_model: JaxModel
    input_shape: tuple[int, ...]


def linear(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


# ---- a single small layer: what a call costs -----------------------------------------------------


def jax_linear(weights: Weights, x: jax.Array, training: bool) -> tuple[jax.Array, Weights]:
    return x @ weights["weight"].T + weights["bias"], {}


# ---- a perceptron --------------------------------------------------------------------------------


def torch_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))


def jax_mlp(weights: Weights, x: jax.Array, training: bool) -> tuple[jax.Array, Weights]:
    x = jax.nn.relu(linear(weights, "0", x))
    x = jax.nn.relu(linear(weights, "2", x))
    return linear(weights, "4", x), {}


# ---- a convolutional network ---------------------------------------------------------------------

CHANNELS = (3, 32, 64, 64)
STRIDES = (1, 2, 2)


class ConvNet(nn.Module):
    """Three times convolution, BatchNorm and ReLU; then the mean over the image and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        sizes = zip(CHANNELS, CHANNELS[1:], STRIDES, strict=False)
        self.convolutions = nn.ModuleList(nn.Conv2d(i, o, 3, s, padding=1, bias=False) for i, o, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels in CHANNELS[1:])
        self.head = nn.Linear(CHANNELS[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return self.head(x.mean((2, 3)))


def jax_batch_norm(weights: Weights, name: str, x: jax.Array, training: bool) -> tuple[jax.Array, Weights]:
    mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
    changed = {}
    if training:
        count = x.size // x.shape[1]
        running_mean, running_variance = mean, variance
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        changed = {
            f"{name}.running_mean": 0.9 * running_mean + 0.1 * mean,
            f"{name}.running_var": 0.9 * running_variance + 0.1 * variance * count / (count - 1),
        }
    scale = weights[f"{name}.weight"] * jax.lax.rsqrt(variance + 1e-5)
    shift = weights[f"{name}.bias"] - mean * scale
    return x * scale[:, None, None] + shift[:, None, None], changed


def jax_conv_net(weights: Weights, x: jax.Array, training: bool) -> tuple[jax.Array, Weights]:
    changed: Weights = {}
    for i, stride in enumerate(STRIDES):
        kernel = weights[f"convolutions.{i}.weight"]
        x = jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding=((1, 1), (1, 1)))
        x, statistics = jax_batch_norm(weights, f"norms.{i}", x, training)
        x = jax.nn.relu(x)
        changed |= statistics
    return linear(weights, "head", x.mean((2, 3))), changed


# ---- a transformer block -------------------------------------------------------------------------

WIDTH = 256
HEADS = 8


class Block(nn.Module):
    """Causal self-attention and a perceptron, with the norms in front."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def jax_layer_norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def jax_block(weights: Weights, x: jax.Array, training: bool) -> tuple[jax.Array, Weights]:
    batch, length, width = x.shape
    heads = linear(weights, "qkv", jax_layer_norm(weights, "norm1", x)).reshape(batch, length, 3, HEADS, width // HEADS)
    query, key, value = heads.transpose(2, 0, 3, 1, 4)
    scores = query @ key.swapaxes(-1, -2) / (width // HEADS) ** 0.5
    scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
    mixed = jax.nn.softmax(scores) @ value
    x = x + linear(weights, "out", mixed.swapaxes(1, 2).reshape(batch, length, width))
    hidden = jax.nn.gelu(linear(weights, "up", jax_layer_norm(weights, "norm2", x)), approximate=False)
    return x + linear(weights, "down", hidden), {}


MODELS = [
    Model("linear", lambda: nn.Linear(4, 4), jax_linear, (2, 4)),
    Model("mlp", torch_mlp, jax_mlp, (64, 256)),
    Model("conv", ConvNet, jax_conv_net, (8, 3, 32, 32)),
    Model("block", Block, jax_block, (4, 128, WIDTH)),
]


def make_torch(model: Model, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The module and its input, the same for the same seed."""
    torch.manual_seed(seed)
    return model.torch_model(), torch.randn(model.input_shape)
