"""Searches for NaN: that they are found, beside infinities too, and in which arrays a product comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaten_ops.cpu.layouts.nan_checks import with_quick_nan_checks

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _names(fn: Callable[[Any], Any], shape: tuple[int, ...], dtype: Any = "float32") -> list[str]:
    program = with_quick_nan_checks(jax.make_jaxpr(fn)(np.zeros(shape, dtype)))
    return [e.primitive.name for e in program.jaxpr.eqns]


def test_which_are_quick() -> None:
    def searched(x: Any) -> Any:
        return lax.reduce_or(x != x, (0,))

    assert "dot_general" in _names(searched, (200, 50))
    assert "dot_general" in _names(searched, (10_000,))
    assert "dot_general" not in _names(searched, (20, 50))
    assert "dot_general" not in _names(searched, (200, 50), jnp.bfloat16)
    assert "dot_general" not in _names(lambda x: lax.reduce_or(x != x[:1], (0,)), (200, 50))


_EXTREMA: dict[str, Callable[[torch.Tensor], Any]] = {
    "all": lambda x: x.max(),
    "rows": lambda x: x.amax(-1),
    "columns": lambda x: x.amin(1),
    "first": lambda x: x.max(0)[0],
    "both": lambda x: torch.stack(torch.aminmax(x, dim=-1)),
    "computed": lambda x: (x * 2).abs().amax((0, 2)),
}
_INF, _NAN = float("inf"), float("nan")
_VALUES = {"finite": [], "infinite": [_INF, -_INF], "nan": [_NAN], "both": [_INF, _NAN]}


@pytest.mark.parametrize("values", _VALUES)
@pytest.mark.parametrize("name", _EXTREMA)
def test_extrema(name: str, values: str) -> None:
    x = torch.randn(4, 60, 64)
    for i, value in enumerate(_VALUES[values]):
        x[i, 3 * i, 5] = value
    x.requires_grad_()
    fn = _EXTREMA[name]
    found, expected = torch.compile(fn, backend="jaten")(x), fn(x)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*grads, equal_nan=True)
