"""Sliding windows along an axis as constant indices, the common part of the pooling kernels.

A window matrix is a numpy array of shape (outputs, taps): the positions that each output reads. Positions outside the
axis stand for padding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..kernel_base.extrema import reduce_max

# Up to this many taps a window is unrolled into slices, which XLA fuses into one loop; beyond, it becomes an axis.
_MOST_UNROLLED = 16
_LONG = 1024  # elements of a plane: of fewer, one axis after the other takes no longer than all at once


def per_dimension(values: Sequence[int], n: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One value for each of n spatial dimensions; one stands for all, none for `default`."""
    values = tuple(values) or tuple(default)
    return values * n if len(values) == 1 else values


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The number of windows along an axis (`pooling_output_shape` of aten/src/ATen/native/Pool.h)."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    outputs = (reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (outputs - 1) * stride >= size + padding:  # the last window must start inside the input
        outputs -= 1
    return outputs


def sliding(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> np.ndarray:
    """The window matrix of ordinary pooling."""
    outputs = output_size(size, kernel, stride, padding, dilation, ceil_mode)
    return np.arange(outputs)[:, None] * stride - padding + np.arange(kernel) * dilation


def adaptive(size: int, outputs: int) -> np.ndarray:
    """The window matrix of adaptive pooling, windows shorter than the longest padded with -1."""
    out = np.arange(outputs)
    start, end = out * size // outputs, -((out + 1) * size // -outputs)
    taps = np.arange(int((end - start).max(initial=1)))
    position = start[:, None] + taps
    return np.where(position < end[:, None], position, -1)


def covering(size: int, kernel: int, stride: int, padding: int) -> np.ndarray:
    """The windows of `sliding` that cover each position. If the stride does not divide the kernel, some of these do not
    cover it, or are none of `sliding`'s. Those of `adaptive(size, outputs)` are `adaptive(outputs, size)`.
    """
    return (np.arange(size)[:, None] + padding - kernel) // stride + 1 + np.arange(-(-kernel // stride))


def is_valid(windows: np.ndarray, size: int) -> np.ndarray:
    return (windows >= 0) & (windows < size)


def is_long_plane(windows: Sequence[np.ndarray], plane: Sequence[int]) -> bool:
    """True if the only window is the whole plane, which has many elements, and whose axes are not all unrolled."""
    whole = all(np.array_equal(w, np.arange(size)[None]) for w, size in zip(windows, plane, strict=True))
    return whole and max(plane) > _MOST_UNROLLED and math.prod(plane) >= _LONG


class Regular(NamedTuple):
    """Windows as `lax.reduce_window` takes them, along one axis."""

    taps: int
    stride: int
    dilation: int
    padding: tuple[int, int]


def regular(windows: np.ndarray, size: int) -> Regular | None:
    """Windows on an axis of a size, if they are evenly spaced, of one length, and reach over both ends."""
    if not windows.size:
        return None
    (outputs, taps), first = windows.shape, int(windows[0, 0])
    stride = int(windows[1, 0]) - first if outputs > 1 else 1
    dilation = int(windows[0, 1]) - first if taps > 1 else 1
    even = first + np.arange(outputs)[:, None] * stride + np.arange(taps) * dilation
    if min(stride, dilation) < 1 or first > 0 or not np.array_equal(windows, even):
        return None
    high = max(0, int(windows[-1, -1]) + 1 - size)
    fitting = (size - first + high - dilation * (taps - 1) - 1) // stride + 1
    return Regular(taps, stride, dilation, (-first, high)) if fitting == outputs else None


def reduce_windows(operands: Any, start: Any, combine: Any, axes: Sequence[Regular]) -> Any:
    """`lax.reduce_window` over the last axes of one or several arrays."""
    before = [Regular(1, 1, 1, (0, 0))] * (jax.tree.leaves(operands)[0].ndim - len(axes))
    taps, stride, dilation, padding = zip(*before, *axes, strict=True)
    return lax.reduce_window(operands, start, combine, taps, stride, padding, None, dilation)


def _is_even(positions: np.ndarray) -> bool:
    """True if positions are evenly spaced and increasing."""
    steps = np.diff(positions)
    return positions.size > 0 and bool(np.all(steps == steps[:1])) and bool(np.all(steps > 0))


def _repeats(positions: np.ndarray) -> tuple[int, int] | None:
    """(times, start) if positions are first + (start + 0, 1, 2, ...) // times, else None."""
    if not positions.size:
        return None
    counts = np.unique(positions, return_counts=True)[1]
    times = int(counts.max())
    start = times - int(counts[0])
    expected = positions[0] + (start + np.arange(positions.size)) // times
    return (times, start) if np.array_equal(positions, expected) else None


def _repeated(x: jax.Array, times: int, axis: int) -> jax.Array:
    """Each element along an axis, repeated."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    dims = [d + (d > axis) for d in range(x.ndim)]
    return lax.broadcast_in_dim(x, (*before, size, times, *after), dims).reshape(*before, size * times, *after)


def take_positions(x: jax.Array, positions: np.ndarray, axis: int, fill: float | int = 0) -> jax.Array:
    """The elements of x at constant positions along an axis, `fill` where a position is outside.

    Evenly spaced positions are a slice and repeated ones a broadcast, which XLA fuses and vectorizes; others a gather.
    """
    size = x.shape[axis]
    if _is_even(positions):
        first, last = int(positions[0]), int(positions[-1])
        step = int(positions[1]) - first if positions.size > 1 else 1
        low, high = max(0, -first), max(0, last + 1 - size)
        if low or high:
            config = [(0, 0, 0)] * x.ndim
            config[axis] = (low, high, 0)
            x = lax.pad(x, jnp.asarray(fill, x.dtype), config)
        return lax.slice_in_dim(x, first + low, last + low + 1, step, axis)
    if (repeats := _repeats(positions)) is not None:
        times, start = repeats
        each = take_positions(x, np.arange(positions[0], positions[-1] + 1), axis, fill)
        return lax.slice_in_dim(_repeated(each, times, axis), start, start + positions.size, axis=axis)
    taken = x[(slice(None),) * axis + (np.clip(positions, 0, max(size - 1, 0)).astype(np.int32),)]
    valid = is_valid(positions, size)
    if valid.all():
        return taken
    return jnp.where(_along(valid, axis, x.ndim), taken, jnp.asarray(fill, x.dtype))


def pad_to_windows(
    x: jax.Array, windows: Sequence[np.ndarray], fill: float | int = 0
) -> tuple[jax.Array, list[np.ndarray], list[int]]:
    """x padded so that no window of its last axes reaches outside, the windows, and the padding before each axis.

    The padded array is stored: XLA's loop over the windows would otherwise test each element that it reads.
    """
    sizes = x.shape[x.ndim - len(windows) :]
    low = [max(0, -int(w.min(initial=0))) for w in windows]
    high = [max(0, int(w.max(initial=0)) + 1 - size) for w, size in zip(windows, sizes, strict=True)]
    if any(low) or any(high):
        config = [(0, 0, 0)] * (x.ndim - len(windows)) + [(a, b, 0) for a, b in zip(low, high, strict=True)]
        x = lax.optimization_barrier(lax.pad(x, jnp.asarray(fill, x.dtype), config))
    return x, [w + a for w, a in zip(windows, low, strict=True)], low


def _along(values: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    """A vector (or matrix, then over two axes) shaped to broadcast along `axis`."""
    return values.reshape(*[1] * axis, *values.shape, *[1] * (ndim - axis - 1))


def as_axis(x: jax.Array, windows: np.ndarray, axis: int, fill: float | int = 0) -> jax.Array:
    """x with `axis` replaced by the two axes of a matrix of positions."""
    if _is_even(windows.reshape(-1)) or min(windows.shape) > _MOST_UNROLLED:
        taken = take_positions(x, windows.reshape(-1), axis, fill)
        return taken.reshape(*x.shape[:axis], *windows.shape, *x.shape[axis + 1 :])
    if windows.shape[0] <= windows.shape[1]:
        return jnp.stack([take_positions(x, row, axis, fill) for row in windows], axis)
    return jnp.stack([take_positions(x, column, axis, fill) for column in windows.T], axis + 1)


def weighted_sum(x: jax.Array, windows: np.ndarray, weights: np.ndarray | None, axis: int) -> jax.Array:
    """The sum of each window along an axis, times `weights` of the same shape."""
    if not 0 < windows.shape[1] <= _MOST_UNROLLED:
        taken = as_axis(x, windows, axis)
        return jnp.sum(taken if weights is None else taken * _along(weights, axis, x.ndim), axis + 1, dtype=x.dtype)
    total = None
    for k in range(windows.shape[1]):
        term = take_positions(x, windows[:, k], axis)
        term = term if weights is None else term * _along(weights[:, k], axis, x.ndim)
        total = term if total is None else total + term
    return total


def lowest(dtype: np.dtype) -> float | int:
    """The identity of the maximum."""
    return -np.inf if jnp.issubdtype(dtype, jnp.inexact) else int(jnp.iinfo(dtype).min)


def _is_better(candidate: jax.Array, best: jax.Array) -> jax.Array:
    # ATen's rule: a later equal value loses, a later NaN wins
    better = candidate > best
    return better | (candidate != candidate) if jnp.issubdtype(candidate.dtype, jnp.inexact) else better


def window_max(
    x: jax.Array, at: jax.Array, windows: np.ndarray, valid: np.ndarray, axis: int
) -> tuple[jax.Array, jax.Array]:
    """The maximum of each window along an axis, and the element of `at` (shaped like x) at the same place.

    The first of equal elements is taken and the last NaN, as ATen does; what is not `valid` never is.
    """
    if not 0 < windows.shape[1] <= _MOST_UNROLLED:
        mask = _along(valid, axis, x.ndim)
        return select_max(as_axis(x, windows, axis), as_axis(at, windows, axis), axis + 1, mask)
    best, best_at = take_positions(x, windows[:, 0], axis), take_positions(at, windows[:, 0], axis)
    for k in range(1, windows.shape[1]):
        candidate = take_positions(x, windows[:, k], axis)
        better = _is_better(candidate, best)
        is_first = valid[:, k] & ~valid[:, :k].any(1)
        if is_first.any():
            better = better | _along(is_first, axis, x.ndim)
        best = jnp.where(better, candidate, best)
        best_at = jnp.where(better, take_positions(at, windows[:, k], axis), best_at)
    return best, best_at


def select_max(x: jax.Array, at: jax.Array, axis: int, valid: np.ndarray | None = None) -> tuple[jax.Array, jax.Array]:
    """The maximum along an axis and the element of `at` at the same place, by the rule of `window_max`."""
    taps = x.shape[axis]
    tap = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    is_max = x == jnp.max(x, axis, keepdims=True)
    chosen = jnp.min(jnp.where(is_max if valid is None else is_max & valid, tap, taps), axis, keepdims=True)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        last_nan = jnp.max(jnp.where(x != x, tap, -1), axis, keepdims=True)
        chosen = jnp.where(last_nan >= 0, last_nan, chosen)
    here = tap == chosen
    return _greatest(x, here, axis), jnp.sum(jnp.where(here, at, 0), axis, dtype=at.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _greatest(x: jax.Array, here: jax.Array, axis: int) -> jax.Array:
    """The greatest elements along an axis, differentiable as those `here`, which a program without gradients drops."""
    return reduce_max(x, (axis,))


@_greatest.defjvp
def _greatest_jvp(axis, primals, tangents):
    picked = jnp.where(primals[1], tangents[0], jnp.zeros((), primals[0].dtype))
    return _greatest(*primals, axis), lax.reduce_sum(picked, (axis,))
