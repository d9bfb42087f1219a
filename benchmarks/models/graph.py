"""A graph network: each node takes the mean of its neighbours, as GraphSAGE does (Hamilton et al., 2017)."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, Weights
from .layers import linear

NODES, EDGES, CLASSES = 2000, 16000, 16
WIDTHS = (64, 128, 128, CLASSES)


class Layer(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.own, self.neighbours = nn.Linear(width_in, width), nn.Linear(width_in, width, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degrees: Tensor) -> Tensor:
        mean = torch.zeros_like(x).index_add(0, target, x[source]) / degrees
        return self.own(x) + self.neighbours(mean)


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(a, b) for a, b in itertools.pairwise(WIDTHS))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        degrees = x.new_zeros(len(x)).index_add(0, target, x.new_ones(len(target))).clamp(min=1)[:, None]
        for layer in self.layers[:-1]:
            x = F.relu(layer(x, source, target, degrees))
        return self.layers[-1](x, source, target, degrees)


def jax_graph_net(w: Weights, updates: Weights | None, x: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    degrees = jnp.maximum(jax.ops.segment_sum(jnp.ones(len(target), x.dtype), target, len(x)), 1)[:, None]
    for i in range(len(WIDTHS) - 1):
        mean = jax.ops.segment_sum(x[source], target, len(x)) / degrees
        x = linear(w, f"layers.{i}.own", x) + linear(w, f"layers.{i}.neighbours", mean)
        if i < len(WIDTHS) - 2:
            x = jax.nn.relu(x)
    return x


def _graph() -> tuple[Tensor, ...]:
    return torch.randn(NODES, WIDTHS[0]), torch.randint(NODES, (EDGES,)), torch.randint(NODES, (EDGES,))


CASES = [Case("graph-net", GraphNet, jax_graph_net, _graph, lambda: torch.randint(CLASSES, (NODES,)))]
