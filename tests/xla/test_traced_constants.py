"""Values in programs that JAX traces: those of constants are computed, those of operands are not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.xla.traced_constants import constant_value, number_in

CONSTANTS: dict[str, tuple[Callable[[], Any], Any]] = {
    "a factory": (lambda: jnp.zeros(2), [0, 0]),
    "a chain": (lambda: jnp.cumsum(jnp.arange(4) * 2) > 5, [False, False, True, True]),
    "a compiled function": (lambda: jax.jit(lambda x: x + 1)(jnp.arange(3)), [1, 2, 3]),
    "a loop": (lambda: jax.lax.fori_loop(0, 5, lambda i, x: x + i, 0), 10),
    "one of several results": (lambda: jax.lax.scan(lambda c, x: (c + x, c), 0, jnp.arange(3))[1], [0, 0, 1]),
    "a custom derivative": (lambda: jax.nn.relu(jnp.arange(3) - 1), [0, 0, 1]),
    "an array used twice": (lambda: (x := jnp.arange(3)) * x + x, [0, 2, 6]),
    "random numbers of a key": (lambda: jax.random.bits(jax.random.key(0), (2,)) * 0, [0, 0]),
    "NumPy's array": (lambda: jnp.asarray(np.array([1, 2])) * 2, [2, 4]),
}
TRACES: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "none": lambda fn: fn(jnp.ones(3)),
    "jit": lambda fn: jax.jit(fn)(jnp.ones(3)),
    "grad": lambda fn: jax.grad(fn)(jnp.ones(3)),
    "jit of grad": lambda fn: jax.jit(jax.grad(fn))(jnp.ones(3)),
    "vmap": lambda fn: jax.vmap(fn)(jnp.ones((2, 3))),
    "scan": lambda fn: jax.lax.scan(lambda c, x: (c, fn(x)), 0, jnp.ones((2, 3))),
    "remat": lambda fn: jax.grad(jax.checkpoint(fn))(jnp.ones(3)),
}


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("name", CONSTANTS)
def test_values_of_constants(name: str, trace: str) -> None:
    make, wanted = CONSTANTS[name]
    found = []

    def fn(x: Any) -> Any:
        found.append(constant_value(make()))
        return x.sum()

    TRACES[trace](fn)
    for value in found:
        assert not isinstance(value, jax.core.Tracer)
        np.testing.assert_array_equal(value, wanted)


UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "an operand": lambda x: x,
    "a part of one": lambda x: x[0] * 0,
    "an operand and a constant": lambda x: jnp.arange(3) + x,
    "a compiled function of one": lambda x: jax.jit(jnp.add)(x, 1),
    "an operand of a loop": lambda x: jax.lax.fori_loop(0, 5, lambda i, y: y + i, x),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_values_of_operands_are_unknown(name: str) -> None:
    def fn(x: Any) -> Any:
        y = UNKNOWN[name](x)
        assert constant_value(y) is None
        with pytest.raises(jax.errors.ConcretizationTypeError):
            number_in(jnp.sum(y))
        return x

    jax.jit(fn)(jnp.ones(3))


def test_equations_with_effects_are_not_run_again() -> None:
    called = []

    def fn(x: Any) -> Any:
        y = jax.experimental.io_callback(lambda: called.append(1) or np.int32(1), jax.ShapeDtypeStruct((), np.int32))
        assert constant_value(y) is None
        return x + y

    jax.jit(fn)(jnp.ones(3)).block_until_ready()
    assert called == [1]


def test_numbers_are_read() -> None:
    found = []
    jax.jit(lambda x: (found.append(number_in(jnp.arange(3).sum())), x)[1])(jnp.ones(3))
    assert found == [3]
    assert type(found[0]) is int
