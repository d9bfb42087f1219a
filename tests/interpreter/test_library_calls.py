"""Convolutions, products and sums beside the whole program of XLA's, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaten_ops.cpu import conv_eigen, conv_primitive
from jaten_ops.interpreter.first_calls import as_xla
from jaten_ops.interpreter.interpreted_program import Interpreted
from jaten_ops.interpreter.primitive_rules import NotInterpreted
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows
from jaten_ops.xla.jitted import jitted
from jaten_ops.xla.x64 import Enabled

from ..harness.interpreted import same

_RNG = np.random.default_rng(0)


def _made(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(dtype)


def _agrees(function: Callable[..., Any], *operands: np.ndarray) -> Interpreted:
    with Enabled():
        made = jitted(function)
        program = Interpreted(made.trace(*operands).jaxpr)
        found, expected = as_xla(program, list(operands)), jax.tree.leaves(made(*operands))
    for one, other in zip(found, expected, strict=True):
        assert same(one, other)
    return program


_PARTS = ("forward", "input_gradient", "weight_gradient")
_CONVOLUTIONS: dict[str, tuple[tuple[int, ...], int, Windows]] = {
    "3x3": ((2, 24, 9, 8), 16, Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "strided": ((2, 24, 9, 8), 16, Windows((3, 3), (2, 1), (1, 0), (1, 1), 1)),
    "dilated": ((1, 24, 9, 8), 16, Windows((3, 3), (1, 1), (2, 2), (2, 2), 1)),
    "small images": ((1, 64, 3, 3), 64, Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "stem": ((1, 3, 21, 20), 32, Windows((7, 7), (2, 2), (3, 3), (1, 1), 1)),
    "row": ((2, 24, 30), 16, Windows((3,), (1,), (1,), (1,), 1)),
}


def _operands(shape: tuple[int, ...], outputs: int, windows: Windows, part: str, dtype: Any) -> tuple[Any, ...]:
    """The shape of a part's result, and its operands."""
    x, weight = _made(*shape, dtype=dtype), _made(outputs, shape[1], *windows.kernel, dtype=dtype)
    grad = _made(shape[0], outputs, *windows.positions(shape[2:]), dtype=dtype)
    return {
        "forward": (grad.shape, x, weight),
        "input_gradient": (shape, grad, weight),
        "weight_gradient": (weight.shape, x, grad),
    }[part]


_AS_PRODUCTS: dict[str, tuple[tuple[int, ...], int, Windows]] = {
    "of each pixel": ((2, 96, 14, 14), 24, Windows((1, 1), (1, 1), (0, 0), (1, 1), 1)),
    "of every other pixel": ((2, 64, 16, 16), 128, Windows((1, 1), (2, 2), (0, 0), (1, 1), 1)),
    "small images": ((2, 256, 4, 4), 64, Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "small images, strided": ((2, 128, 8, 8), 32, Windows((3, 3), (2, 2), (1, 1), (1, 1), 1)),
    "one image": ((1, 64, 4, 4), 64, Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "the whole image": ((3, 32, 5, 4), 8, Windows((5, 4), (1, 1), (0, 0), (1, 1), 1)),
}


def _by_rules(part: str, windows: Windows, result: tuple[int, ...]) -> Callable[..., jax.Array]:
    """As a CPU has it: around products elements are transposed."""
    call = ConvCall(part, windows, () if part == "forward" else result)
    return lambda a, b: conv_primitive.compute(call, a, b)


def _by_eigen(part: str, windows: Windows, result: tuple[int, ...]) -> Callable[..., jax.Array]:
    compute = getattr(conv_eigen, part)
    return lambda a, b: compute(a, b, windows, result)


_ROWS = [(_by_eigen, *row) for row in _CONVOLUTIONS.items()] + [(_by_rules, *row) for row in _AS_PRODUCTS.items()]
_ROWS += [(_by_rules, "3x3", _CONVOLUTIONS["3x3"])]  # Eigen's, by the primitive


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("part", _PARTS)
@pytest.mark.parametrize(
    ("made_by", "sizes"), [pytest.param(by, row, id=f"{name}{by.__name__}") for by, name, row in _ROWS]
)
def test_convolutions(made_by: Callable[..., Any], sizes: Any, part: str, dtype: Any) -> None:
    result, *operands = _operands(*sizes, part, dtype)
    assert _agrees(made_by(part, sizes[2], result), *operands).calls == 1


_PRODUCTS: dict[str, Callable[..., Any]] = {
    "matrices": lambda a, b: a @ b,
    "of rows": lambda a, b: lax.dot_general(a, a, (((1,), (1,)), ((), ()))),
    "of columns": lambda a, b: lax.dot_general(b, b, (((0,), (0,)), ((), ()))),
    "batched": lambda a, b: jnp.stack([a, -a]) @ jnp.stack([b, b]),
    "with a vector added": lambda a, b: a @ b + b[0],
    "a vector": lambda a, b: a[0] @ b,
    "and sums of rows": lambda a, b: (a @ b, a.sum(0)),
    "transposed": lambda a, b: lax.dot_general(a.T, b, (((0,), (0,)), ((), ()))),
    "with itself, transposed": lambda a, b: a @ a.T,
    "from the end": lambda a, b: a @ b[::-1],
    "then transposed": lambda a, b: (a @ b).T,
    "then transposed in parts": lambda a, b: lax.transpose((a @ b).reshape(1, *a.shape[:1], -1), (2, 0, 1)),
    "of a part, transposed": lambda a, b: a[:, 1:] @ b[1:].T.T,
    "transposed before and after": lambda a, b: lax.rev(b.T @ a.T, (1,)).T + 0,
}


@pytest.mark.parametrize("sizes", [(3, 5, 4), (64, 48, 32), (1, 300, 7)], ids=str)
@pytest.mark.parametrize("name", _PRODUCTS)
def test_products(name: str, sizes: tuple[int, int, int]) -> None:
    rows, terms, columns = sizes
    operands = _made(rows, terms), _made(terms, columns)
    if rows == 1 and name in ("of rows", "with itself, transposed"):  # one number
        with pytest.raises(NotInterpreted):
            _agrees(_PRODUCTS[name], *operands)
        return
    assert _agrees(_PRODUCTS[name], *operands).calls == 1


def test_sums_that_wait_for_each_other() -> None:
    """XLA adds in the program's order, but for constants."""
    a, b, c = (_made(50) for _ in range(3))
    _agrees(lambda a, b, c: ((a + b) - c) + a, a, b, c)
    for function in (lambda a, b, c: a * b + c, lambda a, b, c: (a + np.float32(0.1)) + np.float32(1e8) + b + c):
        with pytest.raises(NotInterpreted):
            _agrees(function, a, b, c)
    short = [x.astype(jnp.bfloat16) for x in (a, b, c)]
    with pytest.raises(NotInterpreted):
        _agrees(lambda a, b, c: (a + b) - c, *short)


_COMPILED: dict[str, Callable[..., Any]] = {
    "a sum alone": lambda a: a.sum(0),
    "a product that is added up": lambda a: (a @ a, (a * a).sum()),
    "a function": lambda a: jnp.exp(a) @ a,
    "transposed in two ways": lambda a: (lambda c: (c.T, c.reshape(2, 2, 4).T))(a @ a),
    "twice the same, one of them transposed": lambda a: ((a @ a).T, a @ a),
    "transposed, and as it is": lambda a: (lambda c: (c.T, c))(a @ a),
    "transposed between two": lambda a: (a @ a).T @ a,
    "a sum of what is transposed": lambda a: (a @ a, a.T.sum(0)),
    "of vectors": lambda a: a.reshape(-1) @ a.reshape(-1),
    "of one term": lambda a: a[:, :1] @ a[:1],
    "half precision": lambda a: a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16),
}


@pytest.mark.parametrize("name", _COMPILED)
def test_what_is_compiled(name: str) -> None:
    with pytest.raises(NotInterpreted):
        _agrees(_COMPILED[name], _made(4, 4))
