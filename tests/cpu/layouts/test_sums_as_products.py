"""Sums that become products: which, and that results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax
from jax.extend import core

from jaten_ops.cpu.layouts.sums_as_products import with_sums_as_products

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

_RNG = np.random.default_rng(0)
_SHAPE = (6, 24, 40)


def _array(*dims: int) -> np.ndarray[Any, Any]:
    """Values for some of the dimensions, one element in the others."""
    return _RNG.standard_normal([n if d in dims else 1 for d, n in enumerate(_SHAPE)]).astype("float32")


# dimensions of the two factors, and those that are added up
_PRODUCTS = {
    "rows and a vector": ((0, 1, 2), (2,), (2,)),
    "a vector and rows": ((2,), (0, 1, 2), (2,)),
    "rows and weights": ((0, 1, 2), (0, 1), (1,)),
    "rows and a vector for each matrix": ((0, 1, 2), (0, 2), (2,)),
    "planes": ((0, 1, 2), (1, 2), (1, 2)),
    "columns": ((0, 1, 2), (0,), (0,)),
    "pairs": ((1, 2), (0, 2), (2,)),
    "outer products": ((0, 1), (0, 2), (0,)),
    "repeated matrices": ((1, 2), (0, 1), (1,)),
}
_OTHERS = {
    "two wholes": ((0, 1, 2), (0, 1, 2), (2,)),
    "one of them has nothing to add": ((0, 1, 2), (1,), (2,)),
    "a number": ((0, 1, 2), (), (2,)),
    "a batch behind others": ((0, 1, 2), (1, 2), (2,)),
    "nothing in common": ((0, 1), (2,), (0,)),
}


def _sum(axes: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    return lambda a, b: lax.reduce_sum(lax.broadcast_in_dim(a, _SHAPE, (0, 1, 2)) * b, axes)


def _names(fn: Callable[..., Any], *arrays: Any) -> set[str]:
    program = with_sums_as_products(jax.make_jaxpr(fn)(*arrays))
    return {e.primitive.name for e in program.jaxpr.eqns}


@pytest.mark.parametrize("name", [*_PRODUCTS, *_OTHERS])
def test_results(name: str) -> None:
    dims, more, axes = (_PRODUCTS | _OTHERS)[name]
    a, b, fn = _array(*dims), _array(*more), _sum(axes)
    program = with_sums_as_products(jax.make_jaxpr(fn)(a, b))
    names = [e.primitive.name for e in program.jaxpr.eqns]
    assert ("dot_general" in names, "mul" in names) == (name in _PRODUCTS, name in _OTHERS)
    (found,) = core.jaxpr_as_fun(program)(a, b)
    # sums of float32 in another order
    np.testing.assert_allclose(found, fn(a, b), rtol=1e-5, atol=1e-5)


def test_what_stays() -> None:
    a, b = _array(0, 1, 2), _array(2)

    def used_twice(a: Any, b: Any) -> Any:
        terms = a * b
        return lax.reduce_sum(terms, (2,)), terms

    assert "dot_general" not in _names(used_twice, a, b)
    assert "dot_general" not in _names(_sum((2,)), a.astype("bfloat16"), b.astype("bfloat16"))
    assert "dot_general" not in _names(lambda a, b: lax.reduce_sum(a * b, (0,)), a[0, 0, :8], b[0, 0, :8])


def test_several_factors() -> None:
    """Parts that are not repeated are multiplied once for two sums, and by themselves for none."""
    x, g, w, s = _array(0, 1, 2), _array(0, 1, 2), _array(2), _array(0, 1)

    def two(x: Any, g: Any, w: Any, s: Any) -> Any:
        return lax.reduce_sum(x * (g * w), (2,)), lax.reduce_sum((x * s) * g * 2.0, (0, 1))

    def alone(x: Any, g: Any, w: Any) -> Any:
        return lax.reduce_sum(x * (g * w), (2,))

    def used(x: Any, g: Any, w: Any) -> Any:
        weighted = g * w
        return lax.reduce_sum(x * weighted, (2,)), weighted

    assert "dot_general" not in _names(alone, x, g, w)
    for fn, arrays, count in ((two, (x, g, w, s), 2), (used, (x, g, w), 1)):
        program = with_sums_as_products(jax.make_jaxpr(fn)(*arrays))
        assert [e.primitive.name for e in program.jaxpr.eqns].count("dot_general") == count
        for found, expected in zip(core.jaxpr_as_fun(program)(*arrays), fn(*arrays), strict=True):
            # sums of float32 in another order, of up to four factors
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


_FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pooled": lambda x, w: (x * w.softmax(-1)[..., None]).sum(1),
    "weighted": lambda x, w: (x * w[:1, :, None]).mean((0, 1)),
    "outer": lambda x, w: (x[:, 0, :, None] * w[:, None, :]).sum(0),
    "repeated": lambda x, w: (w[..., None].expand_as(x) * x).mean(-1).sin(),
    "normalized": lambda x, w: (x / x.norm(dim=-1, keepdim=True)) * w[..., None],
    "rms norm": lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w[0, :, None],
    "squared": lambda x, w: (x * x * w[..., None] * 0.5).sum(1),
    "cosines": lambda x, w: torch.nn.functional.cosine_similarity(x, x.flip(1) * w[..., None], dim=-1),
    "gated": lambda x, w: (x * w.sigmoid()[..., None]).sum((1, 2), keepdim=True) * x,
}


@pytest.mark.parametrize("name", _FORMS)
def test_gradients(name: str) -> None:
    x, w = torch.randn(8, 24, 40, requires_grad=True), torch.randn(8, 24, requires_grad=True)
    fn = _FORMS[name]
    found, expected = torch.compile(fn, backend="jaten")(x, w), fn(x, w)
    # sums of float32 in another order
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(expected)
    grads = torch.autograd.grad(found, (x, w), grad), torch.autograd.grad(expected, (x, w), grad)
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)  # as above


def test_edges() -> None:
    x, w = torch.randn(8, 24, 40), torch.randn(8, 24)
    x[0, 0, 0], x[1, 1, 1], x[2, 2, 2], w[2, 2], x[3] = float("inf"), float("nan"), float("inf"), 0.0, 0.0
    with torch.no_grad():
        found = torch.compile(lambda x, w: (x * w[..., None]).sum(1), backend="jaten")(x, w)
    torch.testing.assert_close(found, (x * w[..., None]).sum(1), equal_nan=True)
