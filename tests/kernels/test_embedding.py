"""Bags of rows, of one size and of several: ATen's values and gradients, and JAX's derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from jaten_ops.kernels import embedding

from ..harness.crossings import crossed

INDICES = torch.tensor([1, 4, 4, 0, 2, 4, 3, 3, 1, 0, 4, 2])
OFFSETS = {
    "of one size": [0, 3, 6, 9],
    "of one entry": list(range(12)),
    "one": [0],
    "the first larger": [0, 4, 6, 9],
    "an empty one": [0, 3, 3, 6],
    "as many sizes as one": [0, 3, 5, 9],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "sum without padding": {"mode": "sum", "padding_idx": 4},
    "mean without padding": {"mode": "mean", "padding_idx": 4},
    "weighted": {"mode": "sum", "per_sample_weights": None},
    "weighted without padding": {"mode": "sum", "per_sample_weights": None, "padding_idx": 4},
}


def _called(backend: str, offsets: Tensor, options: dict[str, Any]) -> list[Tensor]:
    """The bags, and the gradients of the rows and of what weighs them."""
    torch.manual_seed(0)
    weight = torch.randn(6, 5, requires_grad=True)
    leaves = [weight]
    if "per_sample_weights" in options:
        leaves.append(torch.randn(12, requires_grad=True))
        options = options | {"per_sample_weights": leaves[1]}
    with torch.no_grad():
        weight[4, 0] = torch.inf  # a row of the padding is not multiplied by 0
        weight[[1, 3], [1, 2]] = torch.nan  # the first of some bags, and a later one of others

    def call(indices: Tensor, offsets: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, offsets, **options)

    run = call if backend == "eager" else torch.compile(call, backend=backend)
    bags = run(INDICES, offsets)
    return [bags, *torch.autograd.grad(bags, leaves, torch.randn_like(bags))]


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(("bags", "options"), crossed(OFFSETS, OPTIONS))
def test_bags(bags: str, options: str) -> None:
    offsets = torch.tensor(OFFSETS[bags])
    got, expected = (_called(backend, offsets, OPTIONS[options]) for backend in ("jaten", "eager"))
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bags", OFFSETS)
def test_gradients_by_frequency(bags: str) -> None:
    """ATen divides by the frequency of another index where some occur more than once before it."""
    offsets = torch.tensor(OFFSETS[bags])
    weight = torch.randn(6, 5, requires_grad=True)
    gradients = []
    for by_frequency in (False, True):
        found = torch.ops.jaten._embedding_bag(weight, INDICES, offsets, by_frequency)[0]
        gradients += torch.autograd.grad(found.square().sum(), weight)
    frequency = INDICES.bincount(minlength=6).clamp(min=1)[:, None]
    torch.testing.assert_close(gradients[1], gradients[0] / frequency)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bags", OFFSETS)
def test_derivatives_in_jax(bags: str) -> None:
    """Forward and reverse derivatives of the sum are those of a product with the matrix of bags."""
    starts = np.array(OFFSETS[bags])
    sizes = np.diff(starts, append=len(INDICES))
    members = np.zeros((len(starts), 6), np.float32)
    np.add.at(members, (np.repeat(np.arange(len(starts)), sizes), INDICES.numpy()), 1)
    weight, tangent = (jnp.asarray(np.random.default_rng(n).normal(size=(6, 5)), jnp.float32) for n in range(2))

    def sums(weight: jax.Array) -> jax.Array:
        return embedding.embedding_bag(weight, jnp.asarray(INDICES.numpy()), jnp.asarray(starts))[0]

    bags_, change = jax.jvp(sums, (weight,), (tangent,))
    np.testing.assert_allclose(bags_, members @ weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(change, members @ tangent, rtol=1e-5, atol=1e-6)
    (gradient,) = jax.vjp(sums, weight)[1](bags_)
    np.testing.assert_allclose(gradient, members.T @ bags_, rtol=1e-5, atol=1e-5)
    mapped = jax.vmap(sums)(jnp.stack([weight, tangent]))
    np.testing.assert_allclose(mapped[1], members @ tangent, rtol=1e-5, atol=1e-6)
