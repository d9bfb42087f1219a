"""Products whose factors are exchanged: few rows by a large matrix, a wide matrix by a narrow one, in loops too."""

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
from jaten_ops.kernel_base.platform import by_platform

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((3, 4)).astype("float32")


def _product(a: Any, b: Any, dims: tuple[int, int]) -> jax.Array:
    return lax.dot_general(a, b, (((dims[0],), (dims[1],)), ((), ())))


def _t(a: Any) -> jax.Array:
    return lax.transpose(a, (1, 0))


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


_WIDE, _WIDES = _RNG.standard_normal((64, 320)).astype("float32"), _RNG.standard_normal((3, 64, 320)).astype("float32")
_NARROW, _NARROWS = _RNG.standard_normal((64, 8)).astype("float32"), _RNG.standard_normal((3, 64, 8)).astype("float32")


def _products(a: Any, b: Any, dims: tuple[int, int]) -> jax.Array:
    return lax.dot_general(a, b, (((dims[0],), (dims[1],)), ((0,), (0,))))


def _turned(a: Any) -> jax.Array:
    return lax.transpose(a, (0, 2, 1))


def _in_loop(a: Any, b: Any) -> jax.Array:
    return lax.map(lambda pair: _product(_t(pair[0]), pair[1], (1, 0)), (a, b))


def _on_cpu(a: Any, b: Any) -> jax.Array:
    return by_platform(a, b, cpu=_in_loop, default=lambda a, b: _products(a, b, (1, 1)))


# name: the function of wide and of narrow matrices, which have their terms before their last dimension
NARROW: dict[str, tuple[Any, Any, Any, bool]] = {
    "as a gradient has it": (lambda a, b: _product(_t(a), b, (1, 0)) + 1, _WIDE, _NARROW, True),
    "without a transposition": (lambda a, b: _product(a, b, (0, 0)), _WIDE, _NARROW, True),
    "both transposed": (lambda a, b: _product(_t(a), _t(b), (1, 1)), _WIDE, _NARROW, True),
    "transposed again": (lambda a, b: _t(_product(a, b, (0, 0))), _WIDE, _NARROW, True),
    "narrow by wide": (lambda a, b: _product(b, a, (0, 0)), _WIDE, _NARROW, False),
    "few terms": (lambda a, b: _product(a, b, (0, 0)), _WIDE[:8], _NARROW[:8], False),
    "few rows": (lambda a, b: _product(a, b, (0, 0)), _WIDE[:, :100], _NARROW, False),
    "of no multiple": (lambda a, b: _product(a, b, (0, 0)), _WIDE[:, :250], _NARROW[:, :7], True),
    "less of no multiple": (lambda a, b: _product(a, b, (0, 0)), _WIDE[:, :250], _NARROW, False),
    "a column": (lambda a, b: _product(a, b, (0, 0)), _WIDE, _NARROW[:, :1], False),
    "whole numbers": (lambda a, b: _product(a, b, (0, 0)), _WIDE.astype(int), _NARROW.astype(int), False),
    "a batch": (lambda a, b: _products(_turned(a), b, (2, 1)) + 1, _WIDES, _NARROWS, True),
    "a batch, both transposed": (lambda a, b: _products(_turned(a), _turned(b), (2, 2)), _WIDES, _NARROWS, True),
    "a batch without a transposition": (lambda a, b: _products(a, b, (1, 1)), _WIDES, _NARROWS, True),
    "a batch, transposed for others as well": (
        *(lambda a, b: _products(_turned(a), b, (2, 1)) + _turned(a)[..., :8], _WIDES, _NARROWS, True),
    ),
    "a batch of narrow by wide": (lambda a, b: _products(b, a, (1, 1)), _WIDES, _NARROWS, False),
    "a batch behind": (*(lambda a, b: lax.dot_general(a, b, (((0,), (0,)), ((1,), (1,)))), _WIDES, _NARROWS, False),),
    "in a loop": (_in_loop, _WIDES, _NARROWS, True),
    "in a loop of a CPU's own": (_on_cpu, _WIDES, _NARROWS, True),
    "in a function with a loop": (jax.jit(_on_cpu), _WIDES, _NARROWS, True),
}


@pytest.mark.parametrize("name", NARROW)
def test_a_wide_matrix_by_a_narrow_one(name: str) -> None:
    fn, wide, narrow, is_exchanged = NARROW[name]
    found, expected = jax.jit(ordered(fn))(wide, narrow), fn(wide, narrow)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert ("optimization_barrier" in str(jax.make_jaxpr(ordered(fn))(wide, narrow))) == is_exchanged


# columns of the first matrix and of the second, and the rows of both: whether a copy of the first is transposed
COPIED = {
    (128, 128, 64): True, (256, 256, 512): True, (256, 512, 512): False, (512, 768, 128): True, (512, 1100, 128): False,
    (1536, 1024, 128): True, (192, 96, 128): True, (192, 128, 128): False, (200, 64, 128): False, (128, 128, 63): False,
}  # fmt: skip


@pytest.mark.parametrize("sizes", COPIED, ids=str)
@pytest.mark.parametrize("form", ["a gradient", "transposed before", "integers", "a batch"])
def test_a_transposed_copy_of_a_factor(sizes: tuple[int, int, int], form: str) -> None:
    rows, columns, terms = sizes
    a, b = (_RNG.standard_normal((terms, n)).astype("float32") for n in (rows, columns))
    fn, is_copied = (lambda a, b: _product(a, b, (0, 0)) + 1), COPIED[sizes]
    if form == "transposed before":
        a, fn = a.T.copy(), lambda a, b: _product(_t(a), b, (0, 0))
        is_copied = False  # it lies as the library reads it
    elif form == "integers":
        a, b, is_copied = a.astype("int32"), b.astype("int32"), False
    elif form == "a batch":
        a, b, is_copied, fn = a[None], b[None], False, lambda a, b: _products(a, b, (1, 1))
    found, expected = jax.jit(ordered(fn))(a, b), np.asarray(fn(a, b))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    program = str(jax.make_jaxpr(ordered(fn))(a, b))
    assert ("in_order" in program) == ("cond" in program) == is_copied  # in a branch, so that nothing is fused with it


# sizes of the batch, columns of the first matrices and of the second, the rows of both: whether a copy is transposed
COPIED_IN_BATCH = {
    ((16,), 16, 32, 16): True, ((2, 8), 16, 32, 16): True, ((8,), 2, 2, 3): True, ((16,), 32, 32, 32): True,
    ((16,), 36, 36, 32): False, ((7,), 16, 32, 16): False, ((16,), 16, 1, 16): False, ((16,), 1, 16, 16): False,
}  # fmt: skip


@pytest.mark.parametrize("sizes", COPIED_IN_BATCH, ids=str)
@pytest.mark.parametrize("form", ["a gradient", "transposed before", "first factors in order", "bfloat16"])
def test_transposed_copies_of_small_factors(sizes: tuple[tuple[int, ...], int, int, int], form: str) -> None:
    batch, rows, columns, terms = sizes
    leading, last = tuple(range(len(batch))), len(batch)
    a, b = (_RNG.standard_normal((*batch, terms, n)).astype("float32") for n in (rows, columns))
    dims, is_copied = ((last, last), COPIED_IN_BATCH[sizes])
    if form == "transposed before":
        b, dims, is_copied = np.swapaxes(b, -1, -2).copy(), (last, last + 1), False  # `a.T @ b.T`
    elif form == "first factors in order":
        a, dims, is_copied = np.swapaxes(a, -1, -2).copy(), (last + 1, last), False
    elif form == "bfloat16":
        a, b, is_copied = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), False

    def fn(a: Any, b: Any) -> jax.Array:
        numbers = ((dims[:1], dims[1:]), (leading, leading))
        return lax.dot_general(a, b, numbers, preferred_element_type=np.float32) + 1

    found, expected = jax.jit(ordered(fn))(a, b), np.asarray(fn(a, b))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert ("in_order" in str(jax.make_jaxpr(ordered(fn))(a, b))) == is_copied


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_gradients_of_attention_over_few_tokens(device: str, dynamic: bool) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((q @ k.mT).softmax(-1) @ v).sin().sum()

    qkv = [torch.randn(3, 4, 16, 8) for _ in range(3)]
    expected = torch.autograd.grad(attention(*[t.requires_grad_() for t in qkv]), qkv)
    moved = [t.detach().to(device).requires_grad_() for t in qkv]
    loss = torch.compile(attention, backend="jaten", dynamic=dynamic)(*moved)
    for gradient, wanted in zip(torch.autograd.grad(loss, moved), expected, strict=True):
        assert device == "jax" or gradient.stride() == wanted.stride()  # compiled ones on the device are row-major
        torch.testing.assert_close(gradient.cpu(), wanted)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("inputs", [8, 256])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_gradient_of_a_layer_whose_output_is_read_across(device: str, inputs: int) -> None:
    layer, x = torch.nn.Linear(inputs, 320 if inputs == 8 else 256), torch.randn(64, inputs)
    layer(x).sin().sum().backward()
    expected = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer.to(device)
    torch.compile(layer, backend="jaten")(x.to(device)).sin().sum().backward()
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        assert parameter.grad.stride() == gradient.stride()
        torch.testing.assert_close(parameter.grad.cpu(), gradient)
