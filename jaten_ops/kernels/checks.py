"""Errors that depend on values: an index out of range, a matrix that is not positive definite.

A kernel is traced, so it cannot look at values and raise. It says `require(ok, IndexError, "message")`; whoever traces
it collects the conditions as one more output of the executable, and raises after the call if one does not hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp


@dataclass
class Conditions:
    """What the kernels traced in a `collect` block require: 0-d bool arrays and the exceptions they stand for."""

    values: list[jax.Array] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def stacked(self) -> jax.Array:
        """The conditions as one bool array of shape (n,)."""
        return jnp.stack(self.values)


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
