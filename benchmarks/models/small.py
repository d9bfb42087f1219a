"""Models that show the cost of a call: a small layer, many small parameters; and a perceptron."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn

from .case import Case, Weights
from .layers import linear

SMALL = 4


class Sum(nn.Module):
    """Adds the sum of many small parameters to its input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.terms = nn.ParameterList(torch.randn(SMALL) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.stack(tuple(self.terms)).sum(0) if len(self.terms) else x * 2


def jax_sum(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    return x + jnp.stack([w[f"terms.{i}"] for i in range(len(w))]).sum(0) if w else x * 2


def jax_linear(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    return x @ w["weight"] + w["bias"]


MLP_SIZES = (512, 1024, 1024, 64)


def torch_mlp() -> nn.Module:
    a, b, c, d = MLP_SIZES
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))


def jax_mlp(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(linear(w, "0", x))
    x = jax.nn.relu(linear(w, "2", x))
    return linear(w, "4", x)


def _few() -> tuple[Tensor]:
    return (torch.randn(2, SMALL),)


def _parameters(count: int, *, training: bool = False) -> Case:
    target = (lambda: torch.randn(2, SMALL)) if training else None
    return Case(f"parameters-{count}", lambda: Sum(count), jax_sum, _few, target, overhead=True)


CASES = [
    Case("linear", lambda: nn.Linear(SMALL, SMALL), jax_linear, _few, lambda: torch.randn(2, SMALL), overhead=True),
    _parameters(0),
    _parameters(10),
    _parameters(100, training=True),
    _parameters(1000),
    Case(
        "mlp",
        torch_mlp,
        jax_mlp,
        lambda: (torch.randn(128, MLP_SIZES[0]),),
        lambda: torch.randint(MLP_SIZES[-1], (128,)),
    ),
]
