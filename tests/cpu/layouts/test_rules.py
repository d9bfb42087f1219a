"""Products of transposed matrices in programs for a CPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax

from jaten_ops.cpu.layouts import ordered
from jaten_ops.xla import compiler_options

_RNG = np.random.default_rng(0)
_X, _W, _B = (_RNG.standard_normal(s).astype("float32") for s in ((3, 4), (5, 4), (2, 4, 3)))


def _product(a: Any, b: Any, dims: tuple[int, int]) -> jax.Array:
    return lax.dot_general(a, b, (((dims[0],), (dims[1],)), ((), ())))


def _t(a: Any) -> jax.Array:
    return lax.transpose(a, (1, 0))


PRODUCTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "right": (lambda x, w: _product(x, _t(w), (1, 0)), (_X, _W)),
    "left": (lambda x, w: _product(_t(x), w, (0, 1)), (_X, _W)),
    "both": (lambda x, w: _product(_t(x), _t(w), (0, 0)), (_X, _W)),
    "twice": (lambda x, w: _product(x, _t(_t(_t(w))), (1, 0)), (_X, _W)),
    "with itself": (lambda x: _product(_t(x), _t(x), (0, 0)), (_X,)),
    "used elsewhere": (lambda x, w: (_product(x, _t(w), (1, 0)), _t(w) + 1), (_X, _W)),
    "batched": (lambda b: lax.dot_general(b, lax.transpose(b, (0, 2, 1)), (((2,), (1,)), ((0,), (0,)))), (_B,)),
    "of a tree": (lambda pair: {"y": _product(pair[0], _t(pair[1]), (1, 0))}, ((_X, _W),)),
}


def _same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_transposed_matrices(name: str) -> None:
    fn, operands = PRODUCTS[name]
    _same(jax.jit(ordered(fn))(*operands), fn(*operands))


def test_one_row_does_not_copy_the_weight() -> None:
    layer, seen = torch.nn.Linear(64, 96), []
    compiler_options.of_program("cpu", "")  # which compiles a program to find out
    lower = jax.stages.Lowered.compile
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(jax.stages.Lowered, "compile", lambda *a, **k: (seen.append(lower(*a, **k)), seen[-1])[1])
        x = torch.randn(1, 64)
        torch.testing.assert_close(torch.compile(layer, backend="jaten")(x), layer(x))
    (program,) = seen
    assert "transpose(" not in program.as_text() and "copy(" not in program.as_text()
