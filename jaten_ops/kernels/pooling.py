"""Maximum and average pooling over windows of one, two and three dimensions, and their gradients.

Indices are flat positions in an input plane. All kernels take inputs with and without a batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from . import checks
from .promotion import cast, compute_type, is_inexact
from .windows import adaptive, expand, is_valid, output_size, select_max, sliding, weighted_sum, window_max

Ints = Sequence[int]


# ---- maximum ----


def _index_type(plane: Ints) -> np.dtype:
    return np.dtype("int32") if prod(plane) < 2**31 else np.dtype("int64")


def _max_with_indices(x: jax.Array, windows: Sequence[np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """The maxima of the windows of the last axes and their flat positions, one axis after the other, last one first."""
    n = len(windows)
    plane = x.shape[-n:]
    dtype = _index_type(plane)
    at = lax.broadcasted_iota(dtype, plane, n - 1)
    for i in range(n - 1):
        at = at + lax.broadcasted_iota(dtype, plane, i) * prod(plane[i + 1 :])
    at = jnp.broadcast_to(at, x.shape)
    for axis in reversed(range(x.ndim - n, x.ndim)):
        x, at = window_max(x, at, windows[axis - x.ndim + n], axis)
    return x, at.astype("int64")


def _sliding_windows(x: jax.Array, n: int, kernel_size, stride, padding, dilation, ceil_mode) -> list[np.ndarray]:
    kernel_size = expand(kernel_size, n)
    settings = zip(
        x.shape[-n:],
        kernel_size,
        expand(stride, n, kernel_size),
        expand(padding, n),
        expand(dilation, n),
        strict=True,
    )
    return [sliding(*setting, ceil_mode) for setting in settings]


def _max_pool(n: int, self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    return _max_with_indices(self, _sliding_windows(self, n, kernel_size, stride, padding, dilation, ceil_mode))


def _adaptive_max_pool(n: int, self, output_size):
    windows = [adaptive(s, o) for s, o in zip(self.shape[-n:], expand(output_size, n), strict=True)]
    return _max_with_indices(self, windows)


def _scatter_add(n: int, like: jax.Array, values: jax.Array, indices: jax.Array) -> jax.Array:
    """Adds values to zeros shaped like `like`, at flat positions in each plane of n dimensions."""
    if not values.size:
        return jnp.zeros(like.shape, values.dtype)
    plane, planes = prod(like.shape[-n:]), prod(like.shape[:-n])
    dtype = _index_type((planes, plane))
    at = indices.astype(dtype).reshape(planes, -1) + np.arange(planes, dtype=dtype)[:, None] * dtype.type(plane)
    compute = compute_type(values.dtype)
    out = jnp.zeros(planes * plane, compute).at[at.reshape(-1)].add(cast(values, compute).reshape(-1), mode="drop")
    return cast(out.reshape(like.shape), values.dtype)


_MOST_SHIFTS = 16


def _window_shifts(kernel_size: int, stride: int, padding: int, dilation: int) -> range:
    """The windows that positions from stride * q to stride * (q + 1) lie under, as distances from q."""
    return range(-((dilation * (kernel_size - 1) - padding) // stride), (stride - 1 + padding) // stride + 1)


def _repeated(x: jax.Array, times: Ints) -> jax.Array:
    """Each element of the last axes so many times."""
    lead, n = x.ndim - len(times), len(times)
    sizes = [size for pair in zip(x.shape[lead:], times, strict=True) for size in pair]
    dims = (*range(lead), *range(lead, lead + 2 * n, 2))
    spread = lax.broadcast_in_dim(x, (*x.shape[:lead], *sizes), dims)
    return spread.reshape(*x.shape[:lead], *(size * t for size, t in zip(x.shape[lead:], times, strict=True)))


def _from_windows(like: jax.Array, values: jax.Array, indices: jax.Array, strides: Ints, shifts: list[range]):
    """What windows give to the positions that their indices name, which lie under them.

    Each position asks the windows that it lies under, as ATen does it on CUDA; no element is found by its index.
    """
    n = len(strides)
    lead, plane = like.ndim - n, like.shape[-n:]
    blocks = [-(-size // s) for size, s in zip(plane, strides, strict=True)]
    whole = [b * s for b, s in zip(blocks, strides, strict=True)]
    edges = zip(blocks, shifts, values.shape[lead:], strict=True)
    widths = [(0, 0, 0)] * lead + [(-d[0], b + d[-1] - size, 0) for b, d, size in edges]
    dtype = _index_type(whole)
    indices = lax.pad(indices.astype(dtype), dtype.type(-1), widths)
    values = lax.pad(values, np.zeros((), values.dtype), widths)
    positions = [lax.broadcasted_iota(dtype, whole, i) * dtype.type(prod(plane[i + 1 :])) for i in range(n)]
    position = jnp.broadcast_to(reduce(lax.add, positions), (*like.shape[:lead], *whole))
    total = jnp.zeros(position.shape, values.dtype)
    for start in np.ndindex(*map(len, shifts)):
        bounds = [slice(None)] * lead + [slice(at, at + b) for at, b in zip(start, blocks, strict=True)]
        named, given = (_repeated(a[tuple(bounds)], strides) for a in (indices, values))
        total = total + jnp.where(named == position, given, np.zeros((), values.dtype))
    return lax.slice(total, [0] * like.ndim, like.shape)


def _max_pool_backward(n: int, grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices):
    kernel_size = expand(kernel_size, n)
    strides = expand(stride, n, kernel_size)
    settings = zip(kernel_size, strides, expand(padding, n), expand(dilation, n), strict=True)
    shifts = [_window_shifts(*setting) for setting in settings]
    if not 0 < prod(map(len, shifts)) <= _MOST_SHIFTS or not grad_output.size:
        return _scatter_add(n, self, grad_output, indices)
    compute = compute_type(grad_output.dtype)
    return cast(_from_windows(self, cast(grad_output, compute), indices, strides, shifts), grad_output.dtype)


def _indexed_pool_backward(n: int, grad_output, self, *args):
    """The gradient of other max poolings that return indices; they are the last argument."""
    return _scatter_add(n, self, grad_output, args[-1])


for _n in (2, 3):
    kernel(f"max_pool{_n}d_with_indices")(partial(_max_pool, _n))
    kernel(f"max_pool{_n}d_with_indices_backward")(partial(_max_pool_backward, _n))
    kernel(f"adaptive_max_pool{_n}d")(partial(_adaptive_max_pool, _n))
    kernel(f"adaptive_max_pool{_n}d_backward", f"fractional_max_pool{_n}d_backward")(
        partial(_indexed_pool_backward, _n)
    )


@kernel("max_pool2d_backward")
def max_pool2d_backward(grad_output, self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    settings = kernel_size, stride, padding, dilation, ceil_mode
    return _max_pool_backward(2, grad_output, self, *settings, _max_pool(2, self, *settings)[1])


def _fractional_starts(sample: jax.Array, size: int, outputs: int, kernel_size: int) -> jax.Array:
    """Where windows begin along an axis, (N, C, outputs) from samples (N, C); `generate_intervals` of ATen."""
    last = jnp.full((*sample.shape, 1), size - kernel_size, jnp.int32)
    if outputs <= 1:
        return last[..., :outputs]
    alpha = sample.dtype.type((size - kernel_size) / sample.dtype.type(outputs - 1))
    i = np.arange(outputs - 1).astype(sample.dtype)
    starts = ((i + sample[..., None]) * alpha).astype(jnp.int32) - (sample[..., None] * alpha).astype(jnp.int32)
    return jnp.concatenate([starts, last], -1)


def _fractional_max_pool(n: int, self, kernel_size, output_size, random_samples):
    kernel_size, output_size = expand(kernel_size, n), expand(output_size, n)
    x = self if self.ndim == n + 2 else self[None]
    batch, channels, *plane = x.shape
    # the samples of ATen's 2d kernel are (width, height), those of its 3d kernel (depth, height, width)
    samples = random_samples[:batch, :, ::-1] if n == 2 else random_samples[:batch]
    at = jnp.zeros((batch, channels, *[1] * 2 * n), _index_type(plane))
    for d, size in enumerate(plane):
        starts = _fractional_starts(samples[..., d], size, output_size[d], kernel_size[d])
        positions = starts[..., None] + np.arange(kernel_size[d], dtype=np.int32)
        shape = [1] * 2 * n
        shape[d], shape[n + d] = positions.shape[-2:]
        at = at * size + positions.reshape(batch, channels, *shape).astype(at.dtype)
    at = at.reshape(batch, channels, prod(output_size), prod(kernel_size))
    values = jnp.take_along_axis(x.reshape(batch, channels, -1), at.reshape(batch, channels, -1), -1)
    best, best_at = select_max(values.reshape(at.shape), at, 3)
    shape = (*self.shape[:-n], *output_size)
    return best.reshape(shape), best_at.astype("int64").reshape(shape)


@jax.custom_jvp
def _place(values: jax.Array, indices: jax.Array, out: jax.Array) -> jax.Array:
    """Writes values (P, n) into out (P, m) at indices (P, n); of equal indices the last one wins."""
    rows = np.arange(out.shape[0], dtype=np.int32)[:, None]
    return out.at[rows, indices].set(values, mode="drop")


@_place.defjvp
def _place_jvp(primals, tangents):
    # as ATen, the gradient of a value is the gradient where it was written, even if another one was written over it
    values, indices, out = primals
    rows = np.arange(out.shape[0], dtype=np.int32)[:, None]
    tangent = jnp.zeros(out.shape, values.dtype).at[rows, indices].add(tangents[0], mode="drop", unique_indices=True)
    return _place(values, indices, out), tangent


def _max_unpool(n: int, self, indices, output_size, stride=(), padding=()):
    output_size = expand(output_size, n)
    plane, planes = prod(output_size), prod(self.shape[:-n])
    checks.require((indices >= 0) & (indices < plane), RuntimeError, f"Found an invalid max index: not below {plane}")
    at = indices.reshape(planes, -1).astype(_index_type(output_size))
    out = _place(self.reshape(planes, -1), at, jnp.zeros((planes, plane), self.dtype))
    return out.reshape(*self.shape[:-n], *output_size)


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


def _mean(x: jax.Array, sums: Callable[[jax.Array], jax.Array], divisor: np.ndarray | int) -> jax.Array:
    compute = compute_type(x.dtype)
    return cast(_divide(sums(cast(x, compute)), divisor), x.dtype)


def _mean_backward(
    grad: jax.Array, like: jax.Array, sums: Callable[[jax.Array], jax.Array], divisor: np.ndarray | int
) -> jax.Array:
    compute = compute_type(grad.dtype)
    scaled = _divide(cast(grad, compute), divisor)
    if not is_inexact(compute):  # the transpose of a sum is only defined for inexact types: integers are exact in those
        scaled = scaled.astype("float64")
    (out,) = jax.linear_transpose(sums, jax.ShapeDtypeStruct(like.shape, scaled.dtype))(scaled)
    return cast(out, grad.dtype)


def _avg_pool_parts(
    n: int, x: jax.Array, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
) -> tuple[Callable[[jax.Array], jax.Array], np.ndarray | int]:
    """The sum over windows as a function, and what to divide it by."""
    kernel_size = expand(kernel_size, n)
    stride, padding = expand(stride, n, kernel_size), expand(padding, n)
    plane = x.shape[-n:]
    window, strides, pads, counts = [1] * (x.ndim - n), [1] * (x.ndim - n), [(0, 0)] * (x.ndim - n), []
    for size, k, s, p in zip(plane, kernel_size, stride, padding, strict=True):
        outputs = output_size(size, k, s, p, 1, ceil_mode)
        start = np.arange(outputs) * s - p
        end = np.minimum(start + k, size + p)
        counts.append(end - start if count_include_pad else np.minimum(end, size) - np.maximum(start, 0))
        window.append(k)
        strides.append(s)
        pads.append((p, max(0, (outputs - 1) * s + k - size - p)))
    divisor = divisor_override if divisor_override is not None else _outer(counts)

    def sums(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, np.zeros((), x.dtype), lax.add, window, strides, pads)

    return sums, divisor


def _avg_pool(
    n: int,
    self,
    kernel_size,
    stride=(),
    padding=(0,),
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    return _mean(
        self,
        *_avg_pool_parts(n, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override),
    )


def _avg_pool_backward(n: int, grad_output, self, *settings):
    return _mean_backward(grad_output, self, *_avg_pool_parts(n, self, *settings))


def _adaptive_avg_pool_parts(
    n: int, shape: Ints, output_size: Ints
) -> tuple[Callable[[jax.Array], jax.Array], np.ndarray]:
    if len(output_size) != n:
        raise RuntimeError(f"adaptive_avg_pool{n}d: output_size must be {n} numbers, got {list(output_size)}")
    plane = shape[-n:]
    windows = [adaptive(s, o) for s, o in zip(plane, expand(output_size, n), strict=True)]
    counts = [is_valid(w, s).sum(1) for w, s in zip(windows, plane, strict=True)]

    def sums(x: jax.Array) -> jax.Array:
        for i in reversed(range(n)):
            x = weighted_sum(x, windows[i], None, x.ndim - n + i)
        return x

    return sums, _outer(counts)


def _adaptive_avg_pool(n: int, self, output_size):
    return _mean(self, *_adaptive_avg_pool_parts(n, self.shape, output_size))


def _adaptive_avg_pool_backward(n: int, grad_output, self):
    return _mean_backward(grad_output, self, *_adaptive_avg_pool_parts(n, self.shape, grad_output.shape[-n:]))


for _n in (2, 3):
    kernel(f"avg_pool{_n}d")(partial(_avg_pool, _n))
    kernel(f"avg_pool{_n}d_backward")(partial(_avg_pool_backward, _n))
    kernel(f"_adaptive_avg_pool{_n}d")(partial(_adaptive_avg_pool, _n))
    kernel(f"_adaptive_avg_pool{_n}d_backward")(partial(_adaptive_avg_pool_backward, _n))
