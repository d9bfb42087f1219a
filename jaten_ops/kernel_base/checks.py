"""Errors that depend on values: an index out of range, a matrix that is not positive definite.

A traced kernel cannot look at values and raise. It calls `require(ok, IndexError, "message")`; the tracer collects the
conditions as one more output of the executable, and raises after the call if one of them is false.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass
class Conditions:
    """The conditions that the kernels traced in a `collect` block require: 0-d bool arrays, each with its exception."""

    values: list[jax.Array] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def stacked(self) -> jax.Array:
        """The conditions as one bool array of shape (n,)."""
        return jnp.stack(self.values)


READS_OF_TRACERS: tuple[type[Exception], ...] = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""JAX's errors for a program that reads a value while it is traced: which of them depends on how it asks."""

_OF_SIZES = jax.errors.TracerArrayConversionError, jax.errors.NonConcreteBooleanIndexError


def what_is_read(error: Exception) -> str:
    """The reason for one of these errors, for a user who does not know of JAX's tracing."""
    name = getattr(error, "jaten_operator", None)
    if isinstance(error, _OF_SIZES):  # kernels ask for whole arrays where the sizes of results depend on them
        if name is None:
            return "its values are taken out of the program, as by numpy(), tolist() or np.asarray(x)"
        which = name.partition(".")[0].strip("_")
        return f"the number of results of {which} depends on values, as with x[mask], nonzero() or unique()"
    return str(error).partition("\n")[0]


def where_read(error: Exception) -> str:
    """Words for the place in the program at which one of these errors was raised; empty if that is not known."""
    return getattr(error, "jaten_place", "")


def note_operator(error: Exception, name: str, place: Callable[[], str]) -> None:
    """Notes in one of these errors the operator that it is of, and its place in the program: the innermost."""
    if not hasattr(error, "jaten_operator"):
        error.jaten_operator = name  # type: ignore[attr-defined]  # Python's errors take any attribute
        error.jaten_place = place()  # type: ignore[attr-defined]  # as above


_CURRENT: ContextVar[Conditions | None] = ContextVar("jaten_conditions", default=None)


@contextlib.contextmanager
def collect(conditions: Conditions | None) -> Iterator[None]:
    """Collects the conditions of the kernels traced in this block; None drops them."""
    token = _CURRENT.set(conditions)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def require(ok: jax.Array | bool, error: type[Exception], message: str) -> None:
    """Requires that every element of the bool array `ok` holds; raises `error(message)` after the call if not.

    A plain bool, of numbers that are known while the kernel is traced, raises at once.
    """
    if isinstance(ok, bool):
        if not ok:
            raise error(message)
        return
    conditions = _CURRENT.get()
    if conditions is not None:
        conditions.values.append(jnp.all(ok))
        conditions.errors.append(error(message))


NONE = np.int32(-1)
"""The number for "no condition is broken"."""


class Guarded:
    """A function that JAX traces separately, such as the body of a loop, with its conditions as one more result.

    It returns its results, and the number of the first condition that is broken, or -1.

    Attributes:
        errors: the exceptions of the conditions, once it has been traced.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self.errors: list[Exception] = []

    def __call__(self, *args: Any) -> tuple[Any, jax.Array]:
        conditions = Conditions()
        with collect(conditions):
            results = self._fn(*args)
        self.errors = conditions.errors
        if not conditions.errors:
            return results, jnp.asarray(NONE)
        holds = conditions.stacked()
        return results, jnp.where(jnp.all(holds), NONE, lax.argmin(holds, 0, np.int32))

    def report(self, broken: jax.Array) -> None:
        """Requires the function's conditions outside of it; `broken` is the number that it returned."""
        for number, error in enumerate(self.errors):
            require(broken != number, type(error), str(error))


def first_broken(one: jax.Array, two: jax.Array) -> jax.Array:
    """The number of the first broken condition of two calls of a guarded function."""
    return jnp.where(one >= 0, one, two)
