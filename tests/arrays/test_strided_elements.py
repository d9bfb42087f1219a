"""Strided elements as parts of boxes: which are, and what is taken out and put in."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaten_ops
from jaten_ops.arrays import strided_elements
from jaten_ops.arrays.storage_views import Storage, View
from jaten_ops.xla.x64 import Enabled

X = torch.arange(120).view(4, 5, 6)
BOXES: dict[str, tuple[torch.Tensor, tuple[int, ...] | None]] = {
    "all": (X, (4, 5, 6, 1)),
    "an index": (X[:, 1], (4, 30, 1)),
    "columns": (X[..., 2:4], (4, 5, 6, 1)),
    "steps": (X[:, :, ::2], (4, 5, 3, 2)),
    "rows": (X[2:, 1:3], (4, 5, 6, 1)),
    "transposed": (X.transpose(0, 2)[1:, 0], (4, 30, 1)),
    "rows in pairs": (X[:, :4].unflatten(1, (2, 2)), (4, 5, 6, 1)),
    "rows in pairs, transposed": (X[:, 1:].unflatten(1, (2, 2)).permute(3, 1, 0, 2), (4, 5, 6, 1)),
    "steps in pairs": (X[..., ::3].unsqueeze(2).flatten(1, 2)[:, :4].unflatten(1, (2, 2)), (4, 5, 2, 3)),
    "repeated": (X[:, :1].expand(4, 3, 6), (4, 30, 1)),
    "steps that do not end with the array": (X.flatten()[:119:7], None),
    "rows that begin in the middle of others": (X.as_strided((3, 6), (6, 1), 3), None),
    "a diagonal": (X[0].diagonal(), None),
    "windows": (X.unfold(2, 3, 1), None),
    "one element": (X[1, 1, 1], None),
    "none": (X[:0], None),
}


@pytest.mark.parametrize("name", BOXES)
def test_views_are_parts_of_boxes(name: str) -> None:
    view, expected = BOXES[name]
    axes = strided_elements._moving(tuple(view.shape), view.stride())[1]
    found = strided_elements._box(X.numel(), view.storage_offset(), axes)
    assert (None if found is None else found[0]) == expected
    if found is None or expected is None:
        return
    begin = found[1].tolist()
    assert np.ravel_multi_index(begin, expected) == view.storage_offset()
    with Enabled():
        storage, negative = Storage(jnp.asarray(X.numpy())), jnp.asarray((-view).numpy())
    lies = View(storage, tuple(view.shape), view.stride(), view.storage_offset())
    assert np.array_equal(lies.read(), view.numpy())
    if name != "repeated":
        lies.write(negative)
        written = X.clone()
        written.as_strided(view.shape, view.stride(), view.storage_offset()).neg_()
        assert np.array_equal(lies.storage.array, written.numpy())


LONG = torch.arange(200)
WINDOWS: dict[str, torch.Tensor] = {
    "at each": X.unfold(2, 3, 1),
    "in steps": X.unfold(1, 3, 2),
    "of two dimensions": X.unfold(1, 3, 1).unfold(2, 2, 1),
    "elements first": X.unfold(2, 4, 2).permute(3, 0, 2, 1),
    "of a part": X[1:, :, 1:].unfold(1, 2, 1)[:, 1:],
    "of a transposed one": X.transpose(0, 2).unfold(0, 3, 1),
    "one window": X.unfold(2, 6, 1),
    "repeated": X[:1].expand(2, 5, 6).unfold(2, 3, 1),
    "few and long": LONG.unfold(0, 150, 30),
    "many and long": LONG.unfold(0, 60, 2),
    "many and long, elements first": LONG.unfold(0, 60, 1).t(),
    "two steps of one size": LONG.as_strided((4, 5, 3), (2, 2, 7), 3),
    "steps that do not divide": LONG.as_strided((9, 5), (3, 2), 1),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_cut_out(name: str) -> None:
    view = WINDOWS[name]
    base = X if view._base is X else LONG
    with Enabled():
        array = jnp.asarray(base.numpy())
        found = strided_elements.take_elements(array, view.storage_offset(), tuple(view.shape), view.stride())
    assert np.array_equal(found, view.numpy())


def _in_pairs(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    pairs = y.unfold(0, 2, 2)
    pairs.copy_(pairs.flip(0))
    firsts = pairs[:, :, :1]
    firsts.copy_(firsts.flip(0))
    y.as_strided((2, 2), (6, 2), 1).copy_(y.as_strided((2, 2), (6, 2), 1).flip(0, 1))
    return y


def _reversed(part: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        view = part(y)
        view.copy_(view.flip(0))
        return torch.cat([y.flatten(), view.flatten()])

    return program


WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in pairs": _in_pairs,
    "a row": _reversed(lambda y: y[0]),
    "rows": _reversed(lambda y: y[1:4]),
    "a column": _reversed(lambda y: y[:, 1]),
    "a part": _reversed(lambda y: y[2:5, 1:3]),
    "every other row": _reversed(lambda y: y[::2]),
    "a diagonal": _reversed(lambda y: y.diagonal()),
    "a part of all in a row": _reversed(lambda y: y.view(-1)[3:9]),
    "rows in pairs": _reversed(lambda y: y[:6].unflatten(0, (3, 2))[:, 0]),
    "a row of the transposed": _reversed(lambda y: y.T[1]),
}


@pytest.mark.parametrize("name", WRITES)
def test_values_are_read_before_they_are_written(name: str) -> None:
    """XLA's CPU overwrote rows in place, and computed others of these."""
    program = WRITES[name]
    x = torch.arange(35.0).view(7, 5)
    array = jnp.asarray(x.numpy())
    function = jaten_ops.as_jax(program)
    expected = program(x)
    assert np.array_equal(jax.jit(function)(array), expected.numpy())
    assert torch.equal(program(x.to("jax")).cpu(), expected)
    weight = torch.arange(float(expected.numel())).view(expected.shape)
    grad = jax.jit(jax.grad(lambda x: (function(x) * weight.numpy()).sum()))(array)
    leaf = x.clone().requires_grad_()
    (program(leaf) * weight).sum().backward()
    assert leaf.grad is not None
    assert np.array_equal(grad, leaf.grad.numpy())
