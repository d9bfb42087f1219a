"""Numbers as arrays: ATen raises where a dtype cannot hold a number that is given to an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaten_ops.schema import RELEASE

from . import checks
from .promotion import cast, is_complex, is_float, is_scalar


def scalar(value: Any, dtype: np.dtype) -> jax.Array:
    """A Python number, or the tracer of one, as a 0-d array; raises if the dtype cannot hold it, as ATen does."""
    known = not isinstance(value, jax.Array)
    holds = _holds(np.asarray(value) if known else value, dtype, np if known else jnp)
    message = f"value cannot be converted to type {dtype} without overflow"
    if known and not holds:
        raise RuntimeError(message)
    if not known and holds is not True:
        checks.require(holds, RuntimeError, message)
    made = cast(value, dtype)
    # JAX may return a number that a program passes through, in Python's type, where it differentiates around it
    return made if known or made is not value else jnp.copy(made)


def single(value: Any, dtype: np.dtype) -> jax.Array:
    """`scalar` for a result of one element, for which ATen does not check what is too large for half precision."""
    is_half = is_float(dtype) and dtype.itemsize < 4
    return cast(value, dtype) if is_half and not np.iscomplexobj(value) else scalar(value, dtype)


def bound(value: Any, dtype: np.dtype) -> jax.Array:
    """An operand, a number as `scalar`; for floats it is not checked, since each call would wait for that."""
    return scalar(value, dtype) if dtype.kind in "iu" and is_scalar(value) else cast(value, dtype)


def lower_bound(value: Any, dtype: np.dtype) -> jax.Array:
    """The bound of a clamp as an operand. From torch 2.15 on one that all integers of the dtype are above is none."""
    return _bound(value, dtype, lambda xp, x, info: xp.maximum(x, info.min))


def upper_bound(value: Any, dtype: np.dtype) -> jax.Array:
    """As `lower_bound`, from above."""
    return _bound(value, dtype, lambda xp, x, info: xp.minimum(x, info.max))


def _bound(value: Any, dtype: np.dtype, nearest: Callable[[Any, Any, np.iinfo], Any]) -> jax.Array:
    if RELEASE < (2, 15) or dtype.kind not in "iu" or dtype.itemsize == 8 or not is_scalar(value):
        return bound(value, dtype)
    info, known = np.iinfo(dtype), not isinstance(value, jax.Array)
    made = nearest(np if known else jnp, value, info)
    holds, message = (made >= info.min) & (made <= info.max), "a bound of a clamp is outside the range of the dtype"
    if known and not holds:
        raise RuntimeError(message)
    if not known:
        checks.require(holds, RuntimeError, message)
    return cast(made.item() if known else made, dtype)


def _holds(value: Any, dtype: np.dtype, xp: Any) -> Any:
    """True if a dtype can hold a number. Source: c10::overflows in c10/util/overflow_utils.h."""
    if is_complex(dtype) or dtype.kind == "b" or value.dtype.kind == "b":
        return True
    real = True
    if value.dtype.kind == "c":
        value, real = value.real, value.imag == 0
    if is_float(dtype):
        limit = float(jnp.finfo(dtype).max)
        return real if dtype.itemsize == 8 else real & ~(xp.isfinite(value) & (xp.abs(value) > limit))
    info = np.iinfo(dtype)
    if value.dtype.kind in "iu":
        # a negative number may wrap round in an unsigned type
        return True if dtype.itemsize == 8 else (value >= (info.min or -info.max)) & (value <= info.max)
    return real & (value >= float(info.min)) & (value <= float(info.max))
