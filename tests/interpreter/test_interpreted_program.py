"""Rules of the interpreter beside XLA, on operands with every special value; the op database does so in test_ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaten_ops.cpu import elementary, exponentials
from jaten_ops.interpreter.first_calls import as_xla
from jaten_ops.interpreter.interpreted_program import Interpreted
from jaten_ops.interpreter.primitive_rules import STEP_MAKERS, NotInterpreted
from jaten_ops.xla.memory_order import in_order_p
from jaten_ops.xla.x64 import Enabled

from ..harness.interpreted import same

_FLOATS = np.array([0.0, -0.0, 1.0, -1.5, 0.5, 2.5, -2.5, 3.3e38, -1e30, 1e-30, 1e-39, np.inf, -np.inf, np.nan])
_WHOLE = np.array([0, 1, -1, 2, 7, -8, 31, 32, 33, 64, 127, -128, 100, -100])
_DTYPES = ("float32", "float64", "bfloat16", "float16", "int8", "int32", "int64", "uint8", "bool", "complex64")
_OF_NUMBERS = ("float32", "float64", "int8", "int32", "int64", "uint8")


def _values(dtype: str) -> np.ndarray:
    kind = jnp.dtype(dtype)
    with np.errstate(all="ignore"):
        if kind == np.bool_:
            return np.arange(14) % 3 == 0
        if kind.kind == "c":
            return (_FLOATS + 1j * _FLOATS[::-1]).astype(kind)
        return (_WHOLE if kind.kind in "iu" else _FLOATS).astype(kind)


def _agrees(function: Callable[..., Any], *operands: Any) -> Interpreted:
    with Enabled():
        made = jax.jit(function)
        program = Interpreted(made.trace(*operands).jaxpr)
        found = as_xla(program, list(operands))
        expected = jax.tree.leaves(made(*operands))
    for one, other in zip(found, expected, strict=True):
        assert same(one, other), f"interpreted {one}, compiled {other}"
    return program


_PAIRS = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
}


@pytest.mark.parametrize("dtype", (*_OF_NUMBERS, "bfloat16", "float16"))
@pytest.mark.parametrize("name", _PAIRS)
def test_pairs(name: str, dtype: str) -> None:
    values = _values(dtype)
    if dtype == "bfloat16" and name in ("max", "min"):  # NumPy keeps their denormal numbers
        with pytest.raises(NotInterpreted):
            _agrees(_PAIRS[name], values, values)
        return
    _agrees(_PAIRS[name], values[:, None] + np.zeros_like(values), values + np.zeros_like(values)[:, None])


@pytest.mark.parametrize("name", ["div", "rem"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients(name: str, dtype: str) -> None:
    values = _values(dtype)
    _agrees(getattr(lax, name), values[:, None] + np.zeros_like(values), values + np.zeros_like(values)[:, None])


def test_an_exact_form_is_taken() -> None:
    """The form of a remainder for CPUs rounds often, and is exact all the same: as the other is, which NumPy has."""
    values = _values("float32")
    _agrees(elementary.rem, values[:, None] + np.zeros_like(values), values + np.zeros_like(values)[:, None])
    with pytest.raises(NotInterpreted):
        _agrees(exponentials.exp2, values)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("name", ["shift_left", "shift_right_logical", "shift_right_arithmetic"])
def test_shifts(name: str, dtype: str) -> None:
    values = _values(dtype)
    by = np.arange(0, 14).astype(dtype) * (5 if dtype != "int8" else 1)
    if name == "shift_right_arithmetic" and dtype == "uint8":  # which has no sign
        with pytest.raises(NotInterpreted):
            _agrees(getattr(lax, name), values, by)
        return
    _agrees(getattr(lax, name), values, by)


_RUNNING = {
    "cumsum": lax.cumsum,
    "cumprod": lax.cumprod,
    "cumsum from the end": lambda x: lax.cumsum(x, reverse=True),
}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("name", _RUNNING)
def test_running(name: str, dtype: str) -> None:
    _agrees(_RUNNING[name], _values(dtype))
    _agrees(lambda x: lax.cumsum(x, 1), np.stack([_values(dtype), _values(dtype)[::-1]]))


_SINGLE = {
    "neg": lax.neg,
    "abs": lax.abs,
    "floor": lax.floor,
    "ceil": lax.ceil,
    "sqrt": lax.sqrt,
    "square": lax.square,
    "is_finite": lax.is_finite,
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "clamp": lambda x: lax.clamp(x.dtype.type(-1), x, x.dtype.type(2)),
    "flip": lambda x: lax.rev(x, (0,)),
    "largest": lambda x: lax.reduce_max(x, (0,)),
    "smallest": lambda x: lax.reduce_min(x, (0,)),
    "first largest": lambda x: lax.argmax(x, 0, np.int64),
    "first smallest": lambda x: lax.argmin(x, 0, np.int32),
    "sorted": lambda x: lax.sort(x),
    "order": lambda x: lax.sort((x, lax.iota(np.int32, x.size)), num_keys=1, is_stable=True),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", _SINGLE)
def test_single(name: str, dtype: str) -> None:
    values = _values(dtype)
    _agrees(_SINGLE[name], values)
    _agrees(_SINGLE[name], values[~np.isnan(values)])


@pytest.mark.parametrize("new", _DTYPES)
@pytest.mark.parametrize("old", _DTYPES)
def test_conversions(old: str, new: str) -> None:
    try:
        _agrees(lambda x: lax.convert_element_type(x, jnp.dtype(new)), _values(old))
    except NotInterpreted:
        # complex to real numbers, between short ones, and whether a short one is zero
        between = {old, new} <= {"bfloat16", "float16", "bool"} and old != "bool"
        assert between or old == "complex64"


_MOVED = {
    "pad": lambda x: lax.pad(x, x.dtype.type(3), ((1, 2, 0), (0, 0, 2))),
    "cut by negative padding": lambda x: lax.pad(x, x.dtype.type(3), ((-1, 1, 0), (1, -2, 0))),
    "slice": lambda x: lax.slice(x, (1, 0), (4, 5), (2, 3)),
    "dynamic slice beyond the end": lambda x: lax.dynamic_slice(x, (7, -3), (2, 3)),
    "dynamic update": lambda x: lax.dynamic_update_slice(x, x[:2, :2] * 2, (9, 1)),
    "transpose": lambda x: lax.transpose(x, (1, 0)),
    "broadcast": lambda x: lax.broadcast_in_dim(x, (2, 4, 3, 6), (1, 3)),
    "concatenate": lambda x: lax.concatenate([x, x[:1]], 0),
    "split": lambda x: lax.split(x, (1, 3), axis=0),
    "stack": lambda x: jnp.stack([x, x], 1),
    "iota": lambda x: lax.broadcasted_iota(np.int32, (2, 3), 1),
    "select": lambda x: lax.select(x > 3, x, -x),
    "sum of whole numbers": lambda x: lax.reduce_sum((x * 1).astype(np.int8), (1,)),
    "rows": lambda x: x[jnp.array([3, 0, -1, 0])],
    "rows beyond the end, clipped": lambda x: jnp.take(x, np.array([9, 1, -7]), 0, mode="clip"),
    "rows beyond the end, filled": lambda x: jnp.take(x, np.array([9, 1, -7]), 1, mode="fill", fill_value=5),
    "elements": lambda x: x[jnp.array([[0], [2]]), jnp.array([1, 3])],
    "elements along": lambda x: jnp.take_along_axis(x, np.array([[1], [0], [5], [2]]), 1),
    "batches": lambda x: jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (2,)))(x, np.array([0, 9, 2, 1])),
    "replaced": lambda x: x.at[jnp.array([1, 1, 9])].set(x[:3], mode="drop"),
    "added": lambda x: jnp.zeros_like(x).at[jnp.array([1, 1, -1])].add(x[:3]),
    "added in batches": lambda x: jax.vmap(lambda row, at: jnp.zeros_like(row).at[at].add(1.0))(x, np.arange(4)),
    "replaced at points": lambda x: x.at[jnp.array([0, 2]), jnp.array([5, 5])].set(7.0),
    "chosen": lambda x: lax.cond(x[0, 0] > 0, lambda a: a, lambda a: -a, x),
    "one of three": lambda x: lax.switch(jnp.int32(7), [lambda a: a, lambda a: -a, lambda a: a.T.reshape(4, 6)], x),
    "a running sum": lambda x: lax.scan(lambda c, r: (c + r, (c, -r)), jnp.zeros(6, x.dtype), x),
    "a running sum from the end": lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x, reverse=True),
    "a loop of constants": lambda x: lax.scan(lambda c, r: (jnp.maximum(c, r + x[1]), r), x[0], x),
    "nested": lambda x: jax.jit(lambda a: jax.jit(jnp.negative)(a) + a)(x),
}


@pytest.mark.parametrize("name", _MOVED)
def test_moved(name: str) -> None:
    try:
        _agrees(_MOVED[name], np.arange(24, dtype=np.float32).reshape(4, 6) - 5)
    except NotInterpreted:
        assert name == "sum of whole numbers"  # its product of floats


_COMPILED: dict[str, Callable[..., Any]] = {
    "exp": jnp.exp,
    "sum": jnp.sum,
    "two roundings": lambda x: x * x + x,
    "division by a constant": lambda x: x / np.float32(3),
    "random": lambda x: jax.random.uniform(jax.random.key(0), x.shape),
    "a long loop": lambda x: lax.scan(lambda c, r: (c + r, c), x[0, 0], jnp.ones(4000)),
    "products in a loop": lambda x: lax.scan(lambda c, r: (c * r, c), x[0], x),
    "loop": lambda x: lax.while_loop(lambda a: a.sum() < 3, lambda a: a + 1, x),
    "effect": lambda x: (jax.debug.print("{}", x), x)[1],
    "sum of complex numbers": lambda x: lax.complex(x, x) + 1j,
}


@pytest.mark.parametrize("name", _COMPILED)
def test_what_is_compiled(name: str) -> None:
    with pytest.raises(NotInterpreted):
        Interpreted(jax.jit(_COMPILED[name]).trace(np.ones((4, 4), np.float32)).jaxpr)


def test_large_arrays_are_compiled() -> None:
    with pytest.raises(NotInterpreted):
        Interpreted(jax.jit(lambda x: -x).trace(np.ones(2**23, np.float32)).jaxpr)


def test_every_rule_is_of_a_primitive() -> None:
    """A name that no JAX knows would be a rule that never runs."""
    with Enabled():
        known = {name for module in (lax, jax.extend.core.primitives) for name in dir(module)}
    known = {name.removesuffix("_p") for name in known}
    renamed = {"scatter-add", "add_any", "copy", "copy_p", "stop_gradient", "platform_index"}
    newer = {"stack", "unstack"}  # JAX 0.12
    assert set(STEP_MAKERS) - known - renamed - newer - {in_order_p.name} == set()
