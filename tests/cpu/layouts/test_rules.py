"""Products of matrices in programs for a CPU: transposed ones, and few rows by a large matrix, in loops too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
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


_ROWS, _LARGE = _RNG.standard_normal((2, 8, 300)).astype("float32"), _RNG.standard_normal((256, 300)).astype("float32")

# name: the function of rows and a matrix, and whether the matrix becomes the first factor
FEW_ROWS: dict[str, tuple[Any, Any, Any, bool]] = {
    "as a layer has it": (lambda x, w: _product(x, _t(w), (1, 0)) + 1, _ROWS[0], _LARGE, True),
    "without a transposition": (lambda x, w: _product(x, w, (1, 1)), _ROWS[0], _LARGE, True),
    "of columns": (lambda x, w: _product(x, w, (0, 1)), _t(_ROWS[0]), _LARGE, True),
    "many of columns": (lambda x, w: _product(x, w, (0, 1)), _t(np.tile(_ROWS[0], (9, 1))), _LARGE[:64], True),
    "two, one after the other": (lambda x, w: _product(_product(x, w, (1, 1)), _t(w), (1, 1)), _ROWS[0], _LARGE, True),
    "a gradient": (jax.grad(lambda x, w: jnp.sum(jnp.tanh(_product(x, _t(w), (1, 0))))), _ROWS[0], _LARGE, True),
    "one row": (lambda x, w: _product(x, w, (1, 1)), _ROWS[0, :1], _LARGE, False),
    "many rows": (lambda x, w: _product(x, w, (1, 1)), np.tile(_ROWS[0], (5, 1)), _LARGE, False),
    "a small matrix": (lambda x, w: _product(x, w, (1, 1)), _ROWS[0], _LARGE[:100], False),
    "a matrix in order": (lambda x, w: _product(x, w, (1, 0)), _ROWS[0, :, :256], _LARGE, False),
    "a batch": (lambda x, w: lax.dot_general(x, w, (((2,), (2,)), ((0,), (0,)))), _ROWS, np.stack([_LARGE] * 2), False),
    "bfloat16": (
        *(lambda x, w: _product(x, w, (1, 1)).astype("float32"), _ROWS[0].astype(jnp.bfloat16)),
        *(_LARGE.astype(jnp.bfloat16), False),
    ),
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_few_rows_by_a_large_matrix(name: str) -> None:
    fn, rows, matrix, is_first = FEW_ROWS[name]
    found, expected = jax.jit(ordered(fn))(rows, matrix), fn(rows, matrix)
    error = 1e-2 if rows.dtype == jnp.bfloat16 else 1e-5  # one rounding to 8 bits; sums in another order
    np.testing.assert_allclose(found, expected, rtol=0, atol=error * np.abs(expected).max())
    assert ("optimization_barrier" in str(jax.make_jaxpr(ordered(fn))(rows, matrix))) == is_first


_SQUARE = np.pad(_LARGE, [(0, 44), (0, 0)])


def _batched(a: Any) -> Any:
    return lax.dot_general(a, a, (((2,), (2,)), ((0,), (0,))))


def _scanned(x: Any, w: Any) -> Any:
    def step(state: Any, row: Any) -> tuple[Any, Any]:
        state = jnp.tanh(row + _product(state, _t(w), (1, 0)))
        return state, state

    return lax.scan(step, x, jnp.stack([x, x / 2]))


def _repeated(x: Any, w: Any) -> Any:
    def step(carry: Any) -> Any:
        count, state = carry
        return count + 1, lax.pad(_product(state, w, (1, 1)), np.float32(0), [(0, 0, 0), (0, 300 - len(w), 0)]) / 30

    return lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))


LOOPS: dict[str, tuple[Callable[..., Any], Any, bool]] = {
    "scan": (_scanned, _SQUARE, True),
    "while": (_repeated, _LARGE, True),
    "a gradient": (jax.grad(lambda x, w: jnp.sum(_scanned(x, w)[1] ** 2), (0, 1)), _SQUARE, True),
    "a small matrix": (_repeated, _LARGE[:100], False),
    "outer products": (lambda x, w: lax.map(lambda row: lax.dot_general(row, row, (((), ()), ((), ()))), x), _X, False),
    "batches": (lambda x, w: lax.map(lambda a: _batched(a), jnp.stack([jnp.tile(x, (3, 1, 1))] * 2)), _LARGE, False),
    "one row": (lambda x, w: lax.map(lambda row: _product(row[None], w, (1, 1)), x), _LARGE, False),
}


@pytest.mark.parametrize("name", LOOPS)
def test_few_rows_in_a_loop(name: str) -> None:
    fn, matrix, is_first = LOOPS[name]
    rows = _ROWS[0]
    found, expected = jax.jit(ordered(fn))(rows, matrix), fn(rows, matrix)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    assert ("optimization_barrier" in str(jax.make_jaxpr(ordered(fn))(rows, matrix))) == is_first
