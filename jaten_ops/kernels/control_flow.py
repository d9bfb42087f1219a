"""`torch.cond`, loops and scans, by JAX's control flow.

Conditions of kernels inside the functions (see `checks`) leave a branch or a loop as one number: that of the first
broken condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..kernel_base.checks import NONE, Guarded, first_broken
from ..kernel_base.promotion import number_of


class FunctionOperand(Protocol):
    """A function that is an operand of an operator."""

    def inner(self, operands: Sequence[Any], key: jax.Array | None) -> Any:
        """The function's results, for operands and a PRNG key or None."""


def _as_arrays(values: Any) -> Any:
    """Values with their numbers as weakly typed arrays, which kernels take for numbers; None stays None."""
    return jax.tree.map(_as_array, values)


def _as_array(value: Any) -> jax.Array:
    if isinstance(value, bool | int | float):
        return number_of(jnp.asarray(np.asarray(value)))
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def _key_at(key: jax.Array | None, number: jax.Array) -> jax.Array | None:
    return None if key is None else jax.random.fold_in(key, number)


def cond(key: Any, pred: Any, true_fn: FunctionOperand, false_fn: FunctionOperand, operands: Sequence[Any] = ()) -> Any:
    if not isinstance(pred, jax.Array):  # a size decides
        return (true_fn if pred else false_fn).inner(operands, key)
    one, two = Guarded(true_fn.inner), Guarded(false_fn.inner)

    def first() -> Any:
        results, broken = one(operands, key)
        return _as_arrays(results), (broken, NONE)

    def second() -> Any:
        results, broken = two(operands, key)
        return _as_arrays(results), (NONE, broken)

    results, broken = lax.cond(lax.reshape(pred, ()) != 0, first, second)
    one.report(broken[0])
    two.report(broken[1])
    return results


def while_loop(
    key: Any,
    cond_fn: FunctionOperand,
    body_fn: FunctionOperand,
    carried: Sequence[Any],
    additional: Sequence[Any],
    **_written: Any,
) -> Any:
    """A loop that also ends when a condition is broken, since its test may then never become false."""
    test, body = Guarded(cond_fn.inner), Guarded(body_fn.inner)

    def tested(values: Any, number: Any) -> tuple[Any, Any]:
        goes_on, broken = test((*values, *additional), _key_at(key, 2 * number))
        return lax.reshape(jnp.asarray(goes_on), ()), broken

    def step(state: Any) -> Any:
        values, number, _, _ = state
        results, broken = body((*values, *additional), _key_at(key, 2 * number + 1))
        results = _as_arrays(tuple(results))
        goes_on, untested = tested(results, number + 1)
        return results, number + 1, goes_on, (broken, untested)

    def goes_on(state: Any) -> jax.Array:
        *_, holds, (broken, untested) = state
        return holds & (broken < 0) & (untested < 0)

    start, zero = _as_arrays(tuple(carried)), jnp.asarray(np.int32(0))
    holds, untested = tested(start, zero)
    results, _, _, (broken, untested) = lax.while_loop(
        goes_on, step, (start, zero, holds, (jnp.asarray(NONE), untested))
    )
    body.report(broken)
    test.report(untested)
    return results


def scan(
    key: Any, combine_fn: FunctionOperand, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any]
) -> Any:
    combine, count = Guarded(combine_fn.inner), len(init)

    def step(state: Any, slices: Any) -> Any:
        carry, number, before = state
        results, broken = combine((*carry, *slices, *additional), _key_at(key, number))
        results = _as_arrays(tuple(results))
        return (results[:count], number + 1, first_broken(before, broken)), results[count:]

    start = _as_arrays(tuple(init)), jnp.asarray(np.int32(0)), jnp.asarray(NONE)
    (carry, _, broken), each = lax.scan(step, start, tuple(xs))
    combine.report(broken)
    return (*carry, *each)


def map_(key: Any, fn: FunctionOperand, xs: Sequence[Any], additional: Sequence[Any]) -> Any:
    return scan(key, fn, (), xs, additional)


def associative_scan(key: Any, combine_fn: FunctionOperand, xs: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    def pair(*elements: Any) -> Any:
        return tuple(combine_fn.inner((*elements, *additional), key))

    def combine(left: Any, right: Any) -> Any:
        guarded = Guarded(pair)
        results, broken = jax.vmap(guarded, 0, (0, None))(*left, *right)
        guarded.report(broken)
        return results

    return lax.associative_scan(combine, tuple(xs))
