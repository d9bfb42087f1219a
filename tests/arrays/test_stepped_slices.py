"""Slices with steps of an array's own dimensions: which tensors are such, and what is taken out and put in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaten_ops
from jaten_ops.arrays import stepped_slices
from jaten_ops.xla.x64 import Enabled

X = torch.arange(210).view(6, 5, 7)
SLICES: dict[str, torch.Tensor] = {
    "columns": X[..., ::2],
    "columns from the second on": X[..., 1::3],
    "of each dimension": X[::2, 1::2, ::3],
    "transposed": X[:, ::3, ::2].permute(2, 0, 1),
    "an index": X[::4, 2, 1:],
    "of one row": X[:1, :1, ::2],
    "repeated": X[:, :1, ::2].expand(6, 3, 4),
    "all": X,
    "one element": X[5, 4, 6],
}
OTHERS: dict[str, torch.Tensor] = {
    "a diagonal": X.diagonal(0, 1, 2),
    "windows": X.unfold(2, 3, 2),
    "joined dimensions": X.flatten(1)[:, ::2],
    "beyond the end of a row": X.as_strided((3, 5), (7, 2), 0),
    "none": X[:0],
}


@pytest.mark.parametrize("name", SLICES)
def test_taken_and_replaced(name: str) -> None:
    view = SLICES[name]
    shape, stride = tuple(view.shape), view.stride()
    found = stepped_slices.stepped_slice(tuple(X.shape), view.storage_offset(), shape, stride)
    assert found is not None
    with Enabled():
        array, negative = jnp.asarray(X.numpy()), jnp.asarray((-view).numpy())
        assert np.array_equal(stepped_slices.slice_taken(array, found, shape), view.numpy())
        taken = jax.jit(lambda array: stepped_slices.slice_taken(array, found, shape))
        assert np.array_equal(taken(array), view.numpy())
        assert "gather" not in taken.lower(array).as_text()
        if name != "repeated":
            written = X.clone()
            written.as_strided(shape, stride, view.storage_offset()).neg_()
            replaced = jax.jit(lambda array, values: stepped_slices.slice_replaced(array, values, found))
            assert np.array_equal(replaced(array, negative), written.numpy())


@pytest.mark.parametrize("name", OTHERS)
def test_no_slices(name: str) -> None:
    view = OTHERS[name]
    shape, stride = tuple(view.shape), view.stride()
    assert stepped_slices.stepped_slice(tuple(X.shape), view.storage_offset(), shape, stride) is None


def test_a_loop_over_places_shares_a_program() -> None:
    found = [stepped_slices.stepped_slice((8, 9), at, (8, 3), (9, 2)) for at in range(4)]
    with Enabled():
        array = jnp.arange(72).reshape(8, 9)
        for at, each in enumerate(found):
            assert each is not None
            assert np.array_equal(
                stepped_slices.slice_taken(array, each, (8, 3)), np.asarray(array)[:, at : at + 5 : 2]
            )
    assert len({each._replace(begin=()) for each in found if each is not None}) == 1


def _halves(x: torch.Tensor) -> torch.Tensor:
    """Elements in turn, written in place, of rows with an odd number of them."""
    y = x * 1
    y[:, ::2] = -x[:, ::2]
    y[1::2, 1::2].mul_(2)
    return (y[::2, ::3] * x[::2, ::3]).sin()


def test_functions_of_jax_have_slices() -> None:
    x = torch.randn(5, 9, requires_grad=True)
    _halves(x).sum().backward()
    function = jaten_ops.as_jax(_halves)
    array = jnp.asarray(x.detach().numpy())
    got, grad = jax.jit(function)(array), jax.jit(jax.grad(lambda x: function(x).sum()))
    torch.testing.assert_close(torch.from_numpy(np.array(got)), _halves(x).detach())
    torch.testing.assert_close(torch.from_numpy(np.array(grad(array))), x.grad)
    text = grad.lower(array).as_text()
    assert "gather" not in text and "scatter" not in text
