"""Registers a set of kernels by a loop, as libraries of kernels have them, and trains a gated layer of them.

    python examples/kernel_set.py

Each kernel of the set has a schema, implementations for the platforms that it runs on, and a gradient where JAX finds
none. Pallas kernels run with `interpret=True` on a CPU, which is slow and only for tests, so plain JAX serves there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import torch
from jax.experimental import pallas as pl

import jaten_ops


class Kernel(NamedTuple):
    """A kernel of the set: what it computes, by platform, and what may be differentiated."""

    schema: str
    by_platform: dict[str, Callable[..., Any]]  # "" is for all others
    differentiable: tuple[str, ...]
    gradient: Callable[..., dict[str, torch.Tensor]] | None = None


def rms_norm(x, weight, eps):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def gated(x, gate):
    return x * jax.nn.silu(gate)


def _gated_block(x_ref, gate_ref, out_ref):
    out_ref[...] = x_ref[...] * jax.nn.silu(gate_ref[...])


def gated_by_pallas(x, gate):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(_gated_block, out_shape=shape, interpret=jax.default_backend() == "cpu")(x, gate)


def gradient_of_gated(grads, args, results):
    x, gate = args
    sigmoid = gate.sigmoid()
    return {"x": grads[0] * gate * sigmoid, "gate": grads[0] * x * sigmoid * (1 + gate * (1 - sigmoid))}


SET = (
    Kernel("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor", {"": rms_norm}, ("x", "weight")),
    Kernel(
        "gated(Tensor x, Tensor gate) -> Tensor",
        {"": gated, "cuda": gated_by_pallas, "tpu": gated_by_pallas},
        ("x", "gate"),
        gradient_of_gated,
    ),
)


def register(namespace: str, kernels: tuple[Kernel, ...], platform: str) -> None:
    """Makes each kernel an operator of PyTorch, by its implementation for a platform."""
    for kernel in kernels:
        name = f"{namespace}::{kernel.schema.partition('(')[0]}"
        chosen = kernel.by_platform.get(platform, kernel.by_platform[""])
        jaten_ops.op(f"{namespace}::{kernel.schema}", differentiable=kernel.differentiable)(chosen)
        if kernel.gradient is not None:
            jaten_ops.gradient(name)(kernel.gradient)


class GatedLayer(torch.nn.Module):
    """A normalized, gated layer with a residual connection: (..., width) to (..., width)."""

    def __init__(self, width: int, hidden: int, ops: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.up, self.gate = torch.nn.Linear(width, hidden, bias=False), torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)
        self._ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalized = self._ops.rms_norm(x, self.weight)
        return x + self.down(self._ops.gated(self.up(normalized), self.gate(normalized)))


def train(layer: torch.nn.Module, steps: int) -> list[float]:
    """The losses of a layer that learns to reverse its input."""
    compiled = torch.compile(layer, backend="jaten", fullgraph=True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(32, layer.down.out_features)
        loss = torch.nn.functional.mse_loss(compiled(x), x.flip(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    register("kernelset", SET, jax.default_backend())
    losses = train(GatedLayer(64, 128, torch.ops.kernelset), 300)
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")
