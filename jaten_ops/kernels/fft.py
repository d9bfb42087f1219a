"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from jaten_ops.registry import kernel

from ..kernel_base.promotion import (
    cast,
    compute_type,
    get_default_float,
    is_complex,
    is_integral,
    size_number,
    to_complex,
)

_MOST_AXES = 3  # of lax.fft


def _scale(normalization: int, lengths: Sequence[int]) -> Any:
    """`fft_norm_mode` of aten/src/ATen/native/SpectralOpsUtils.h: none, by the root of n, by n."""
    n = prod(lengths)
    if is_symbolic_dim(n):
        wide = size_number(n, np.float64)
        return (1.0, 1 / jnp.sqrt(wide), 1 / wide)[normalization]
    return (1.0, 1 / sqrt(n), 1 / n)[normalization] if n else 1.0


def _normalize(x: jax.Array, normalization: int, lengths: Sequence[int]) -> jax.Array:
    scale = _scale(normalization, lengths)
    return x if type(scale) is float and scale == 1 else x * jnp.asarray(scale, x.dtype)


def _last(dims: Sequence[int], ndim: int) -> list[int]:
    """The permutation that brings the transformed dimensions to the end, in the order given."""
    return [d for d in range(ndim) if d not in dims] + list(dims)


def _at_end(x: jax.Array, dims: Sequence[int], fn: Callable[[jax.Array], jax.Array]) -> jax.Array:
    order = _last(dims, x.ndim)
    if order == sorted(order):
        return fn(x)
    return fn(x.transpose(order)).transpose(np.argsort(order))


def _complex_to_complex(x: jax.Array, dims: Sequence[int], forward: bool) -> jax.Array:
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    for i in range(0, len(dims), _MOST_AXES):
        group = dims[i : i + _MOST_AXES]
        lengths = tuple(x.shape[d] for d in group)
        if x.size:
            x = _at_end(x, group, lambda x, lengths=lengths: lax.fft(x, kind, lengths))
        if not forward:  # XLA's inverse transform divides by n, ATen's does not
            x = x * np.asarray(prod(lengths), x.dtype)
    return x


# aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor
@kernel("_fft_c2c")
def _fft_c2c(self, dim, normalization, forward):
    dim = [d % self.ndim for d in dim] if self.ndim else []
    out = _complex_to_complex(self, dim, forward)
    return _normalize(out, normalization, [self.shape[d] for d in dim])


# aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor
@kernel("_fft_r2c")
def _fft_r2c(self, dim, normalization, onesided):
    dim = [d % self.ndim for d in dim]
    lengths = tuple(self.shape[d] for d in dim)
    if onesided:
        rest, last = dim[:-1], dim[-1:]
        out = _at_end(self, last, lambda x: lax.fft(x, lax.FftType.RFFT, lengths[-1:]))
        out = _complex_to_complex(out, rest, True)
    else:
        out = _complex_to_complex(lax.convert_element_type(self, to_complex(self.dtype)), dim, True)
    return _normalize(out, normalization, lengths)


# aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor
@kernel("_fft_c2r")
def _fft_c2r(self, dim, normalization, last_dim_size):
    dim = [d % self.ndim for d in dim]
    lengths = [*(self.shape[d] for d in dim[:-1]), last_dim_size]
    x = _complex_to_complex(self, dim[:-1], False)
    out = _at_end(x, dim[-1:], lambda x: lax.fft(x, lax.FftType.IRFFT, (last_dim_size,)))
    return _normalize(out * np.asarray(last_dim_size, out.dtype), normalization, lengths)


# The frequencies of the bins: aten/src/ATen/native/SpectralOps.cpp


def _frequencies(bins: np.ndarray, n: int, d: float, dtype: np.dtype | None) -> jax.Array:
    """The bins, rounded to the dtype, times 1 / (n d), rounded once."""
    dtype = dtype or get_default_float()
    if is_integral(dtype):
        raise RuntimeError("fftfreq requires a floating point or complex dtype")
    if is_complex(dtype):
        raise NotImplementedError(f"fftfreq is not implemented for {dtype}")
    wide = compute_type(dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        return cast(bins.astype(dtype).astype(wide) * np.divide(1.0, np.float64(n * d)).astype(wide), dtype)


# aten::fft_fftfreq(int n, float d=1., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("fft_fftfreq", static=("d",))
def fft_fftfreq(n, d=1.0, *, dtype=None):
    bins = np.arange(n)
    return _frequencies(np.where(bins < (n + 1) // 2, bins, bins - n), n, d, dtype)


# aten::fft_rfftfreq(int n, float d=1., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("fft_rfftfreq", static=("d",))
def fft_rfftfreq(n, d=1.0, *, dtype=None):
    return _frequencies(np.arange(n // 2 + 1), n, d, dtype)
