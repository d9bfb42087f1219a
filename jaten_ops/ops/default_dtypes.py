"""JAX's default dtypes in kernels of users, the same as outside jaten, for example of `jnp.zeros(3)`.

Inside jaten 64-bit types are on. For a user's kernel they are as the program has set them, so that numbers and new
arrays have 32 bits unless it asks for more; 64-bit integers among the arguments, which indices mostly are, stay what
they are. With float64 or complex128 among them they are on, since JAX has such arrays only then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax.lax import _convert_element_type  # private; nothing public makes a weakly typed array of another one

from ..kernel_base import checks
from ..xla import x64

_NARROW = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("float64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("complex64"),
}
_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)


def as_outside(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A user's kernel with the default dtypes that JAX has outside jaten; the results are arrays."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if x64.outside() or not x64.CAN_NARROW or any(map(_is_wide, jax.tree.leaves((args, kwargs)))):
            return jax.tree.map(_array, fn(*args, **kwargs))
        with x64.narrow_defaults():
            args, kwargs = jax.tree.map(_narrowed, (args, kwargs))
            return jax.tree.map(_array, fn(*args, **kwargs))

    return call


def _is_wide(value: Any) -> bool:
    return isinstance(value, jax.Array) and not value.weak_type and value.dtype in (np.float64, np.complex128)


def _narrowed(value: Any) -> Any:
    """A number that was passed with 64 bits, in the dtype that it has when 64-bit types are off."""
    if not (isinstance(value, jax.Array) and value.weak_type and value.dtype in _NARROW):
        return value
    own = _convert_element_type(value, _NARROW[value.dtype], weak_type=True)
    if value.dtype == np.int64:
        message = "Python int too large to convert to int32, which numbers are in JAX without 64-bit types"
        checks.require(lax.convert_element_type(own, np.int64) == value, OverflowError, message)
    return own


def _array(result: Any) -> Any:
    return jnp.asarray(result) if isinstance(result, _NUMBERS) else result
