"""Tensors that are made larger for a program with rounded sizes, and cut again after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaten_ops.arrays import bridge, carrier
from jaten_ops.xla.x64 import Enabled

from .padding_proof import Rows

FILL: float = 0
"""The value of added elements that no result may depend on."""


def with_copies(given: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor with copies of its first row, along each dimension that is shorter than in a shape."""
    for dim, size in enumerate(shape):
        more = size - given.shape[dim]
        if more and given.device.type == "jax":
            given = carrier.wrap(_on_jax(_repeat_first, carrier.unwrap(given), dim, more))
        elif more:
            first = given.narrow(dim, 0, 1)
            given = torch.cat((given, first.expand(*given.shape[:dim], more, *given.shape[dim + 1 :])), dim)
    return given


def enlarged(given: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor with `FILL` behind its elements, in a shape."""
    if tuple(shape) == tuple(given.shape):
        return given
    if given.device.type == "jax":
        return carrier.wrap(_on_jax(_filled_up, carrier.unwrap(given), tuple(shape)))
    if _is_in_front(given, shape):
        return given.as_strided(tuple(shape), given.stride())
    bits, fill = _bits(given), _bits(torch.tensor(FILL).to(given.dtype)) if FILL else 0
    made = np.empty(shape, bits.dtype)
    place = tuple(map(slice, given.shape))
    made[place] = bits
    for dim, size in enumerate(given.shape):
        made[(*place[:dim], slice(size, None))] = fill
    return torch.from_numpy(made).view(given.dtype)


def _is_in_front(given: torch.Tensor, shape: Sequence[int]) -> bool:
    """True if a tensor of numbers is the front of a memory in which there is room for a shape; any numbers may follow.

    What the forward saves is, with `without_padding`.
    """
    if not given.is_floating_point() or given.storage_offset() or tuple(shape[1:]) != given.shape[1:]:
        return False
    return given.is_contiguous() and given.untyped_storage().nbytes() >= math.prod(shape) * given.itemsize


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor for NumPy, which copies it without torch's threads: those wait for XLA's."""
    return bridge.in_numpy(tensor.detach().resolve_conj().resolve_neg().view(_INTEGERS[tensor.dtype.itemsize]))


def _filled_up(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    place = tuple(map(slice, x.shape))
    if next(iter(x.devices())).platform == "cpu" and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        made = np.full(shape, np.array(FILL, np.float32).astype(x.dtype))  # XLA would compile it for each size
        made[place] = np.asarray(x)
        return jax.device_put(made, next(iter(x.devices())))
    return jnp.full(shape, FILL, x.dtype).at[place].set(x)


def without_padding(result: torch.Tensor, shape: Sequence[int], *, is_seen: bool) -> torch.Tensor:
    """The first elements of a result along each dimension.

    Args:
        result: it, in memory of its own.
        shape: the shape of what is left.
        is_seen: whether it leaves the compiled function; else it may keep more memory than it needs.
    """
    if tuple(shape) == tuple(result.shape):
        return result
    if not is_seen and result.device.type == "cpu" and tuple(shape[1:]) == result.shape[1:] and result.is_contiguous():
        return result.as_strided_(shape, result.stride())
    place = tuple(map(slice, shape))
    if result.device.type == "jax":
        return carrier.wrap(_on_jax(_cut, carrier.unwrap(result), place))
    return torch.from_numpy(_bits(result)[place].copy()).view(result.dtype)


def _cut(x: jax.Array, place: tuple[slice, ...]) -> jax.Array:
    device = next(iter(x.devices()))
    return jax.device_put(np.ascontiguousarray(np.asarray(x)[place]), device) if device.platform == "cpu" else x[place]


def part_of_rows(result: torch.Tensor, rows: Rows, real: int, padded: int) -> torch.Tensor:
    """A result without added rows."""
    if result.device.type == "jax":
        return carrier.wrap(_on_jax(_first_rows, carrier.unwrap(result), rows, real, padded))
    return _first_rows(result, rows, real, padded)


def _on_jax(fn: Callable[..., jax.Array], *args: Any) -> jax.Array:
    with Enabled():
        return fn(*args)


def _repeat_first(x: jax.Array, dim: int, more: int) -> jax.Array:
    first = x[(slice(None),) * dim + (slice(1),)]
    return jnp.concatenate([x, jnp.repeat(first, more, dim)], dim)


def _first_rows(x: Any, rows: Rows, real: int, padded: int) -> Any:
    """A tensor or an array without the added rows."""
    axis, outer = rows.axis, rows.outer or 1
    inner = rows.inner or x.shape[axis] // padded
    if outer == 1:
        return x[(slice(None),) * axis + (slice(real * inner),)]
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = x.reshape((*before, outer, padded, inner, *after))
    x = x[(slice(None),) * (axis + 1) + (slice(real),)]
    return x.reshape((*before, outer * real * inner, *after))


def strided(result: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The tensor with the graph's strides, which depend on the number of rows."""
    pairs = zip(sizes, strides, result.stride(), strict=True)
    if all(size == 1 or want == got for size, want, got in pairs):
        return result
    first = tuple(slice(0, None if stride else 1) for stride in strides)
    part = result[first]
    return torch.empty_strided(part.shape, strides, dtype=result.dtype).copy_(part).as_strided(sizes, strides)
