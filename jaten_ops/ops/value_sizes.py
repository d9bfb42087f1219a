"""Results whose sizes depend on values, by NumPy, of operands in the host's memory.

XLA would compile a program for each size. A call that is not for NumPy, and one with an error, is left to the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..arrays.partitioned import first_device, put_beside, values_on_host
from ..xla import cheap_puts

_MOST_TO_ORDER = 2**14  # XLA sorts more numbers with their places in less time


@functools.lru_cache(maxsize=1024)
def _type_of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return jax.core.ShapedArray(shape, dtype)


def _put(values: np.ndarray, *operands: jax.Array) -> jax.Array:
    """New values on the device of operands, to which the array keeps if one of them does."""
    if not cheap_puts.can_put():
        return put_beside(values, operands[0])
    committed = any(operand.committed for operand in operands)
    whole, device = np.asarray(values, order="C"), first_device(operands[0].sharding)
    return cheap_puts.put_on_device(whole, _type_of(values.shape, values.dtype), device, committed=committed)


def _nonzero(x: jax.Array) -> jax.Array | None:
    values = values_on_host(x)
    return None if values is None else _put(np.argwhere(values != 0), x)


def _masked_select(x: jax.Array, mask: jax.Array) -> jax.Array | None:
    values, chosen = values_on_host(x), values_on_host(mask) if mask.dtype == bool else None
    if values is None or chosen is None:
        return None
    try:
        values, chosen = np.broadcast_arrays(values, chosen)
    except ValueError:  # the kernel's error names the sizes
        return None
    return _put(values[chosen], x, mask)


def _index(x: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array | None:
    """The elements where one mask, of the dimensions behind those that are taken whole, is true."""
    mask = indices[-1] if len(indices) else None
    at = len(indices) - 1
    if mask is None or mask.dtype != bool or not mask.ndim or mask.shape != x.shape[at : at + mask.ndim]:
        return None
    values, chosen = values_on_host(x), values_on_host(mask)
    if values is None or chosen is None or any(index is not None for index in indices[:-1]):
        return None
    where: Any = (*[slice(None)] * at, chosen)
    return _put(values[where], x, mask)


def _bincount(x: jax.Array, weights: jax.Array | None, minlength: int) -> jax.Array | None:
    values = values_on_host(x) if weights is None and minlength >= 0 and x.ndim == 1 else None
    # NumPy refuses uint64, which may not fit
    if values is None or values.dtype.kind not in "iu" or values.dtype == np.uint64:
        return None
    if not values.size or values.min() < 0:
        return None
    return _put(np.bincount(values, minlength=minlength).astype(np.int64, copy=False), x)


def _unique(x: jax.Array, consecutive: bool, return_inverse: bool, return_counts: bool) -> Any:
    values = values_on_host(x)
    if values is None or not values.size or values.dtype.kind not in "biuf":
        return None
    flat, order = values.reshape(-1), None
    if not consecutive and not return_inverse and values.dtype.kind != "f":  # equal numbers are the same ones
        flat = np.sort(flat)
    elif not consecutive:
        if flat.size > _MOST_TO_ORDER:
            return None
        order = np.argsort(flat, kind="stable")
        flat = flat[order]
    is_new = np.append(True, flat[1:] != flat[:-1])  # NaN equals nothing, as in ATen
    starts = np.flatnonzero(is_new)
    inverse: np.ndarray = np.zeros(0, np.int64)
    counts: np.ndarray = inverse
    if return_inverse:
        inverse = np.cumsum(is_new) - 1
        if order is not None:
            run, inverse = inverse, np.empty(flat.size, np.int64)
            inverse[order] = run
        inverse = inverse.reshape(values.shape)
    if return_counts:
        counts = np.diff(starts, append=flat.size)
    return _put(flat[starts], x), _put(inverse, x), _put(counts, x)


def _unique1(x: jax.Array, is_sorted: bool, return_inverse: bool) -> Any:
    found = _unique(x, False, return_inverse, False)
    return None if found is None else found[:2]


def _unique2(x: jax.Array, is_sorted: bool, return_inverse: bool, return_counts: bool) -> Any:
    return _unique(x, False, return_inverse, return_counts)


def _unique_consecutive(x: jax.Array, return_inverse: bool, return_counts: bool, dim: int | None) -> Any:
    return _unique(x, True, return_inverse, return_counts) if dim is None else None


def _repeat_interleave(repeats: jax.Array, output_size: int | None) -> jax.Array | None:
    values = values_on_host(repeats) if output_size is None and repeats.ndim == 1 else None
    if values is None or values.dtype not in (np.int32, np.int64) or not values.size or values.min() < 0:
        return None
    return _put(np.repeat(np.arange(values.size, dtype=values.dtype), values), repeats)


RUNS: dict[str, Callable[..., Any]] = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index.Tensor": _index,
    "_unsafe_index.Tensor": _index,
    "bincount": _bincount,
    "repeat_interleave.Tensor": _repeat_interleave,
    "_unique": _unique1,
    "_unique2": _unique2,
    "unique_consecutive": _unique_consecutive,
}
"""For each overload, a function of the kernel's arguments; None leaves the call, and its errors, to the kernel."""
