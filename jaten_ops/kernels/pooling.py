"""Maximum and average pooling over windows of one, two and three dimensions, and their gradients.

Indices are flat positions in an input plane. All kernels take inputs with and without a batch dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base import checks
from ..kernel_base.platform import by_platform, is_open
from ..kernel_base.promotion import cast, compute_type, is_inexact
from .reduction import chosen_values
from .windows import (
    Regular,
    adaptive,
    covering,
    is_long_plane,
    is_valid,
    lowest,
    output_size,
    pad_to_windows,
    per_dimension,
    reduce_windows,
    regular,
    select_max,
    sliding,
    take_positions,
    weighted_sum,
    window_max,
)

_Ints = Sequence[int]


# ---- maximum ----


def _index_type(plane: _Ints) -> np.dtype:
    return np.dtype("int32") if math.prod(plane) < 2**31 else np.dtype("int64")


def _positions(plane: _Ints, shape: _Ints, low: _Ints) -> jax.Array:
    """Flat positions in a plane of the elements of a box of `shape` that begins at `-low`, row by row."""
    dtype = _index_type(shape)
    steps = [dtype.type(math.prod(plane[i + 1 :])) for i in range(len(plane))]
    terms = [lax.broadcasted_iota(dtype, shape, i) * step for i, step in enumerate(steps)]
    before = dtype.type(sum(int(step) * n for step, n in zip(steps, low, strict=True)))
    return reduce(lax.add, terms) - before


def _max_with_indices(x: jax.Array, windows: Sequence[np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """The maxima of the windows of the last axes and their flat positions."""
    return by_platform(
        x,
        cpu=lambda x: _max_by_axis(x, windows),
        default=lambda x: _max_of_windows(x, windows) or _max_by_axis(x, windows),
    )


def _regular(x: jax.Array, windows: Sequence[np.ndarray]) -> list[Regular] | None:
    """The windows of the last axes as XLA takes them; None if one axis has others, as adaptive pooling mostly has."""
    plane = x.shape[x.ndim - len(windows) :]
    found = [regular(w, size) for w, size in zip(windows, plane, strict=True)]
    return None if None in found else [r for r in found if r is not None]


def _max_of_windows(x: jax.Array, windows: Sequence[np.ndarray]) -> tuple[jax.Array, jax.Array] | None:
    """By XLA's reduction of windows, if it takes them."""
    axes, n = _regular(x, windows), len(windows)
    if axes is None or not x.size:
        return None
    batch, plane = x.shape[: x.ndim - n], x.shape[x.ndim - n :]
    positions = jnp.broadcast_to(_positions(plane, plane, [0] * n), x.shape)
    start = np.array(lowest(x.dtype), x.dtype), np.array(np.iinfo(positions.dtype).max, positions.dtype)
    values, at = reduce_windows((lax.stop_gradient(x), positions), start, _later_nan_or_greater, axes)
    flat, of_windows = (*batch, math.prod(plane)), (*batch, -1)
    chosen = chosen_values(x.reshape(flat), values.reshape(of_windows), at.reshape(of_windows), len(batch))
    return chosen.reshape(values.shape), at.astype("int64")


def _later_nan_or_greater(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The one of two values, with its position, that ATen takes: the last NaN, or the first of the greatest."""
    (x, i), (y, j) = a, b
    wins = (y > x) | ((y == x) & (j < i))
    if is_inexact(x.dtype):
        wins = jnp.where(y != y, (x == x) | (j > i), wins)
    return lax.select(wins, y, x), lax.select(wins, j, i)


def _max_by_axis(x: jax.Array, windows: Sequence[np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """By slices that XLA's CPU fuses, one axis after the other, last one first."""
    n = len(windows)
    first, plane = x.ndim - n, x.shape[x.ndim - n :]
    if n > 1 and is_long_plane(windows, plane):  # as one axis, each element is looked at once
        found = _max_by_axis(_flat(x, n), [np.arange(math.prod(plane))[None]])
        return tuple(lax.reshape(a, (*a.shape, *[1] * (n - 1))) for a in found)
    valid = [is_valid(w, size) for w, size in zip(windows, plane, strict=True)]
    x, windows, low = pad_to_windows(x, windows, lowest(x.dtype))
    at = jnp.broadcast_to(_positions(plane, x.shape[first:], low), x.shape)
    for i in reversed(range(n)):
        x, at = window_max(x, at, windows[i], valid[i], first + i)
    return x, at.astype("int64")


def _sliding_windows(x: jax.Array, n: int, kernel_size, stride, padding, dilation, ceil_mode) -> list[np.ndarray]:
    kernel_size = per_dimension(kernel_size, n)
    settings = zip(
        x.shape[-n:],
        kernel_size,
        per_dimension(stride, n, kernel_size),
        per_dimension(padding, n),
        per_dimension(dilation, n),
        strict=True,
    )
    return [sliding(*setting, ceil_mode) for setting in settings]


def _max_pool(n: int, self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    return _max_with_indices(self, _sliding_windows(self, n, kernel_size, stride, padding, dilation, ceil_mode))


def _adaptive_max_pool(n: int, self, output_size):
    windows = [adaptive(s, o) for s, o in zip(self.shape[-n:], per_dimension(output_size, n), strict=True)]
    return _max_with_indices(self, windows)


def _by_plane(ndim: int) -> lax.ScatterDimensionNumbers:
    """Writes along the last of `ndim` dimensions, plane by plane: XLA keeps the others partitioned over a mesh."""
    batch = tuple(range(ndim - 1))
    return lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(ndim - 1,),
        scatter_dims_to_operand_dims=(ndim - 1,),
        operand_batching_dims=batch,
        scatter_indices_batching_dims=batch,
    )


def _flat(x: jax.Array, n: int) -> jax.Array:
    """x with its last n dimensions as one; the others stay apart, for each may be partitioned."""
    return lax.reshape(x, (*x.shape[:-n], math.prod(x.shape[-n:])))


def _added(out: jax.Array, at: jax.Array, values: jax.Array, **known: bool) -> jax.Array:
    """`out` with values added at the positions `at` in its last dimension; what lies outside is dropped."""
    at = lax.expand_dims(at, (at.ndim,))
    return lax.scatter_add(out, at, values, _by_plane(out.ndim), mode=lax.GatherScatterMode.FILL_OR_DROP, **known)


def _scatter_add(n: int, like: jax.Array, values: jax.Array, indices: jax.Array) -> jax.Array:
    """Adds values to zeros shaped like `like`, at flat positions in each plane of n dimensions."""
    if not values.size:
        return jnp.zeros(like.shape, values.dtype)
    plane = like.shape[-n:]
    zeros = jnp.zeros((*like.shape[:-n], math.prod(plane)), compute_type(values.dtype))
    out = _added(zeros, _flat(indices, n).astype(_index_type(plane)), _flat(cast(values, zeros.dtype), n))
    return cast(lax.reshape(out, like.shape), values.dtype)


_MOST_OWNERS = 16


def _from_windows(like: jax.Array, values: jax.Array, indices: jax.Array, owners: Sequence[np.ndarray]) -> jax.Array:
    """Sums at each position of the values of the windows whose indices name it, out of those that cover it.

    Each position looks at the windows that cover it, as in ATen's CUDA kernel; there is no scatter.
    """
    first = like.ndim - len(owners)
    plane = like.shape[first:]
    indices = pad_to_windows(indices.astype(_index_type(plane)), owners, -1)[0]
    values, owners, _ = pad_to_windows(values, owners)
    position = _positions(plane, plane, [0] * len(plane))
    total = None
    for columns in np.ndindex(*[w.shape[1] for w in owners]):
        named, given = indices, values
        for i, column in enumerate(columns):
            named, given = (take_positions(a, owners[i][:, column], first + i) for a in (named, given))
        term = jnp.where(named == position, given, np.zeros((), values.dtype))
        total = term if total is None else total + term
    assert total is not None
    return total


def _max_pool_backward(n: int, grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices):
    kernel_size = per_dimension(kernel_size, n)
    strides = per_dimension(stride, n, kernel_size)
    settings = zip(
        self.shape[-n:], kernel_size, strides, per_dimension(padding, n), per_dimension(dilation, n), strict=True
    )
    # some of these do not cover the position, or are none of the outputs: they do not name it
    owners = [covering(size, d * (k - 1) + 1, s, p) for size, k, s, p, d in settings]
    return _given_by_windows(n, grad_output, self, owners, indices)


def _adaptive_max_pool_backward(n: int, grad_output, self, indices):
    pairs = zip(self.shape[-n:], grad_output.shape[-n:], strict=True)
    return _given_by_windows(n, grad_output, self, [adaptive(outputs, size) for size, outputs in pairs], indices)


def _given_by_windows(n: int, grad_output, self, owners: Sequence[np.ndarray], indices):
    if not 0 < math.prod(w.shape[1] for w in owners) <= _MOST_OWNERS or not grad_output.size:
        return _scatter_add(n, self, grad_output, indices)
    dtype, compute = grad_output.dtype, compute_type(grad_output.dtype)
    return by_platform(
        *(self, grad_output, indices),
        cpu=lambda like, values, at: cast(_from_windows(like, cast(values, compute), at, owners), dtype),
        default=partial(_scatter_add, n),
    )


def _indexed_pool_backward(n: int, grad_output, self, *args):
    """The gradient of other max poolings that return indices; they are the last argument."""
    return _scatter_add(n, self, grad_output, args[-1])


# aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1,
#     bool ceil_mode=False) -> (Tensor, Tensor)
# aten::max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1,
#     bool ceil_mode=False) -> (Tensor, Tensor)
# aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride,
#     int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor
# aten::max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride,
#     int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor
# aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)
# aten::adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)
# aten::{adaptive_max_pool2d_backward, adaptive_max_pool3d_backward}(Tensor grad_output, Tensor self,
#     Tensor indices) -> Tensor
# aten::fractional_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] output_size,
#     Tensor indices) -> Tensor
# aten::fractional_max_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] output_size,
#     Tensor indices) -> Tensor
for _n in (2, 3):
    kernel(f"max_pool{_n}d_with_indices")(partial(_max_pool, _n))
    kernel(f"max_pool{_n}d_with_indices_backward")(partial(_max_pool_backward, _n))
    kernel(f"adaptive_max_pool{_n}d")(partial(_adaptive_max_pool, _n))
    kernel(f"adaptive_max_pool{_n}d_backward")(partial(_adaptive_max_pool_backward, _n))
    kernel(f"fractional_max_pool{_n}d_backward")(partial(_indexed_pool_backward, _n))


# aten::max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0,
#     int[2] dilation=1, bool ceil_mode=False) -> Tensor
@kernel("max_pool2d_backward")
def max_pool2d_backward(grad_output, self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    settings = kernel_size, stride, padding, dilation, ceil_mode
    return _max_pool_backward(2, grad_output, self, *settings, _max_pool(2, self, *settings)[1])


def _fractional_starts(sample: jax.Array, size: int, outputs: int, kernel_size: int) -> jax.Array:
    """Start of each window along an axis, (N, C, outputs), from samples (N, C); `generate_intervals` in ATen."""
    last = jnp.full((*sample.shape, 1), size - kernel_size, jnp.int32)
    if outputs <= 1:
        return last[..., :outputs]
    alpha = sample.dtype.type((size - kernel_size) / sample.dtype.type(outputs - 1))
    i = np.arange(outputs - 1).astype(sample.dtype)
    starts = ((i + sample[..., None]) * alpha).astype(jnp.int32) - (sample[..., None] * alpha).astype(jnp.int32)
    return jnp.concatenate([starts, last], -1)


def _fractional_max_pool(n: int, self, kernel_size, output_size, random_samples):
    kernel_size, output_size = per_dimension(kernel_size, n), per_dimension(output_size, n)
    x = self if self.ndim == n + 2 else self[None]
    batch, channels, *plane = x.shape
    if random_samples.ndim != 3 or random_samples.shape[0] < batch or random_samples.shape[1:] != (channels, n):
        raise RuntimeError(
            f"Expect _random_samples of sizes ({batch}, {channels}, {n}), got {list(random_samples.shape)}"
        )
    # the samples of ATen's 2d kernel are (width, height), those of its 3d kernel (depth, height, width)
    samples = random_samples[:batch, :, ::-1] if n == 2 else random_samples[:batch]
    at = jnp.zeros((batch, channels, *[1] * 2 * n), _index_type(plane))
    for d, size in enumerate(plane):
        starts = _fractional_starts(samples[..., d], size, output_size[d], kernel_size[d])
        positions = starts[..., None] + np.arange(kernel_size[d], dtype=np.int32)
        shape = [1] * 2 * n
        shape[d], shape[n + d] = positions.shape[-2:]
        at = at * size + positions.reshape(batch, channels, *shape).astype(at.dtype)
    at = at.reshape(batch, channels, math.prod(output_size), math.prod(kernel_size))
    values = jnp.take_along_axis(
        x.reshape(batch, channels, math.prod(plane)), at.reshape(batch, channels, at.shape[2] * at.shape[3]), -1
    )
    best, best_at = select_max(values.reshape(at.shape), at, 3)
    shape = (*self.shape[:-n], *output_size)
    return best.reshape(shape), best_at.astype("int64").reshape(shape)


@jax.custom_jvp
def _place(values: jax.Array, at: jax.Array, out: jax.Array) -> jax.Array:
    """Writes values (..., n) into out (..., m) at positions (..., n); of equal positions the last one wins."""
    at = lax.expand_dims(at, (at.ndim,))
    return lax.scatter(out, at, values, _by_plane(out.ndim), mode=lax.GatherScatterMode.FILL_OR_DROP)


@_place.defjvp
def _place_jvp(primals, tangents):
    # as in ATen, a value's gradient is the gradient where it was written, even if another value replaced it
    values, at, out = primals
    return _place(values, at, out), _added(jnp.zeros(out.shape, values.dtype), at, tangents[0], unique_indices=True)


def _max_unpool(n: int, self, indices, output_size, stride=(), padding=()):
    output_size = per_dimension(output_size, n)
    plane = math.prod(output_size)
    checks.require((indices >= 0) & (indices < plane), RuntimeError, f"Found an invalid max index: not below {plane}")
    at = _flat(indices, n).astype(_index_type(output_size))
    out = _place(_flat(self, n), at, jnp.zeros((*self.shape[:-n], plane), self.dtype))
    return lax.reshape(out, (*self.shape[:-n], *output_size))


# aten::fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor,
#     Tensor)
# aten::fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor,
#     Tensor)
# aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor
# aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor
for _n in (2, 3):
    kernel(f"fractional_max_pool{_n}d")(partial(_fractional_max_pool, _n))
    kernel(f"max_unpool{_n}d")(partial(_max_unpool, _n))


# ---- average ----


def _outer(counts: Sequence[np.ndarray]) -> np.ndarray:
    """The products of the elements of vectors, an axis for each."""
    return reduce(np.multiply.outer, counts)


def _divide(total: jax.Array, divisor: np.ndarray | int) -> jax.Array:
    divisor = np.asarray(divisor, total.dtype)
    return total / divisor if is_inexact(total.dtype) else lax.div(total, jnp.broadcast_to(divisor, total.shape))


def _mean(x: jax.Array, windows: Sequence[np.ndarray], divisor: np.ndarray | int) -> jax.Array:
    """The sums of windows of the last axes, divided."""
    compute = compute_type(x.dtype) if x.dtype != bool else np.uint8  # bools are no elements
    return cast(_divide(_sums(cast(x, compute), windows), divisor), x.dtype)


def _sums(x: jax.Array, windows: Sequence[np.ndarray]) -> jax.Array:
    """The sums of windows of the last axes."""
    return by_platform(x, cpu=lambda x: _sums_by_axis(x, windows), default=lambda x: _sums_of_windows(x, windows))


def _sums_of_windows(x: jax.Array, windows: Sequence[np.ndarray]) -> jax.Array:
    """By XLA's reduction of windows, if it takes them."""
    axes = _regular(x, windows)
    if axes is None:
        return _sums_by_axis(x, windows)
    return reduce_windows(x, np.zeros((), x.dtype), lax.add, axes)


def _sums_by_axis(x: jax.Array, windows: Sequence[np.ndarray]) -> jax.Array:
    """By slices that XLA's CPU fuses, one axis after the other, last one first."""
    x, windows, _ = pad_to_windows(x, windows)
    for i in reversed(range(len(windows))):
        x = weighted_sum(x, windows[i], None, x.ndim - len(windows) + i)
    return x


def _averaged(
    n: int, x: jax.Array, kernel_size, stride=(), padding=(0,), ceil_mode=False, include_pad=True, divisor=None
) -> tuple[list[tuple[int, int, int, int]], np.ndarray | int]:
    """For each axis its size, and the windows' size, stride and padding; and what to divide their sums by."""
    kernel_size = per_dimension(kernel_size, n)
    settings = zip(
        x.shape[-n:], kernel_size, per_dimension(stride, n, kernel_size), per_dimension(padding, n), strict=True
    )
    axes = [*settings]
    if divisor is not None:
        return axes, divisor
    if is_open(x) and not ceil_mode and not any(p for _, _, _, p in axes):
        return axes, math.prod(kernel_size)
    counts = []
    for size, k, s, p in axes:
        start = np.arange(output_size(size, k, s, p, 1, ceil_mode)) * s - p
        end = np.minimum(start + k, size + p)
        counts.append(end - start if include_pad else np.minimum(end, size) - np.maximum(start, 0))
    return axes, _outer(counts)


def _avg_pool(n: int, self, kernel_size, stride=(), padding=(0,), ceil_mode=False, *settings):
    axes, divisor = _averaged(n, self, kernel_size, stride, padding, ceil_mode, *settings)
    return _mean(self, [sliding(*axis, 1, ceil_mode) for axis in axes], divisor)


def _avg_pool_backward(n: int, grad_output, self, *settings):
    axes, divisor = _averaged(n, self, *settings)
    compute = compute_type(grad_output.dtype)

    def spread(given: jax.Array, gaps: _Ints) -> tuple[jax.Array, list[np.ndarray]]:
        """Gradients with gaps between windows, whose stride is 1 then; and the windows that cover each position."""
        given = lax.pad(given, np.zeros((), compute), [(0, 0, gap) for gap in (*[0] * (self.ndim - n), *gaps)])
        return given, [covering(size, k, 1 if gap else s, p) for (size, k, s, p), gap in zip(axes, gaps, strict=True)]

    total = by_platform(
        _divide(cast(grad_output, compute), divisor),
        cpu=lambda given: _sums_by_axis(*spread(given, [s - 1 if k % s else 0 for _, k, s, _ in axes])),
        default=lambda given: _sums_of_windows(*spread(given, [s - 1 for _, _, s, _ in axes])),
    )
    return cast(total, grad_output.dtype)


def _adaptive_counts(plane: _Ints, output_size: _Ints) -> np.ndarray:
    pairs = zip(plane, output_size, strict=True)
    return _outer([is_valid(adaptive(size, outputs), size).sum(1) for size, outputs in pairs])


def _adaptive_avg_pool(n: int, self, output_size):
    if len(output_size) != n:
        raise RuntimeError(f"adaptive_avg_pool{n}d: output_size must be {n} numbers, got {list(output_size)}")
    plane = self.shape[-n:]
    if 0 in (plane if n == 2 else self.shape[1:]):
        raise RuntimeError(f"adaptive_avg_pool{n}d(): Expected input to have non-zero size, got {list(self.shape)}")
    windows = [adaptive(size, outputs) for size, outputs in zip(plane, output_size, strict=True)]
    return _mean(self, windows, _adaptive_counts(plane, output_size))


def _adaptive_avg_pool_backward(n: int, grad_output, self):
    plane, outputs = self.shape[-n:], grad_output.shape[-n:]
    given = _divide(cast(grad_output, compute_type(grad_output.dtype)), _adaptive_counts(plane, outputs))
    owners = [adaptive(o, size) for size, o in zip(plane, outputs, strict=True)]
    return cast(_sums(given, owners), grad_output.dtype)


# aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False,
#     bool count_include_pad=True, int? divisor_override=None) -> Tensor
# aten::avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False,
#     bool count_include_pad=True, int? divisor_override=None) -> Tensor
# aten::avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding,
#     bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor
# aten::avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding,
#     bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor
# aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor
# aten::_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor
# aten::{_adaptive_avg_pool2d_backward, _adaptive_avg_pool3d_backward}(Tensor grad_output, Tensor self) -> Tensor
for _n in (2, 3):
    kernel(f"avg_pool{_n}d")(partial(_avg_pool, _n))
    kernel(f"avg_pool{_n}d_backward")(partial(_avg_pool_backward, _n))
    kernel(f"_adaptive_avg_pool{_n}d")(partial(_adaptive_avg_pool, _n))
    kernel(f"_adaptive_avg_pool{_n}d_backward")(partial(_adaptive_avg_pool_backward, _n))
