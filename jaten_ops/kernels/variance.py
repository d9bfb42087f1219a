"""Variances and standard deviations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.reductions import in_one_pass, wide_squares
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, compute_type, is_complex, is_integral, size_number
from .reduction import axes_of, count


def moments(x: jax.Array, axes: tuple[int, ...], correction: float | jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Variance and mean of real elements with the reduced dimensions kept, in the computation type."""
    x = cast(x, compute_type(x.dtype))
    n = count(x, axes)
    mean = lax.expand_dims(lax.reduce_sum(x, axes), axes) / size_number(n, x.dtype)
    squares = lax.expand_dims(lax.reduce_sum(lax.square(x - mean), axes), axes)
    return _variance(squares, n, correction), mean


def _variance(squares: jax.Array, n: int | jax.Array, correction: float | jax.Array | None) -> jax.Array:
    """The variance of n elements by the sum of their squared distances from the mean."""
    freedom = size_number(n, squares.dtype) - cast(1 if correction is None else correction, squares.dtype)
    # the variance of nothing is NaN, its derivatives are 0
    return _per_degree(squares, freedom) if n else squares + np.array(np.nan, squares.dtype)


@jax.custom_jvp
def _per_degree(squares: jax.Array, freedom: jax.Array) -> jax.Array:
    """The sum of squares divided by the degrees of freedom, or by 0 if negative; the gradient has no such limit."""
    return squares / lax.max(freedom, jnp.zeros((), freedom.dtype))


@_per_degree.defjvp
def _per_degree_jvp(primals, tangents):
    squares, freedom = primals
    return _per_degree(squares, freedom), tangents[0] / freedom


def _root(variance: jax.Array) -> jax.Array:
    """The square root, with gradient 0 at 0."""
    zero = variance == 0
    return jnp.where(zero, variance, lax.sqrt(jnp.where(zero, jnp.ones((), variance.dtype), variance)))


def _spread(self, dim, correction, keepdim, root, with_mean):
    if is_integral(self.dtype):
        raise RuntimeError("std and var only support floating point and complex dtypes")
    if is_complex(self.dtype):
        return _spread_of_parts(self, dim, correction, keepdim, root, with_mean)
    axes = axes_of(self, dim)

    def measured(x: jax.Array) -> list[jax.Array]:
        return results(*moments(x, axes, correction))

    def in_double(x: jax.Array) -> list[jax.Array]:
        if not in_one_pass(x, axes):
            return measured(cast(x, np.float64))
        squares, mean = wide_squares(x, axes)
        return results(_variance(squares, count(x, axes), correction), mean)

    def results(variance: jax.Array, mean: jax.Array) -> list[jax.Array]:
        return [cast(_root(variance) if root else variance, self.dtype), cast(mean, self.dtype)]

    # ATen's CPU sums squares in double, its CUDA kernels in float (native/cpu/ReduceOpsKernel.cpp, native/cuda)
    measures = by_platform(self, cpu=in_double, default=measured)
    outs = [out if keepdim else lax.squeeze(out, axes) for out in measures[: 1 + with_mean]]
    return tuple(outs) if with_mean else outs[0]


def _spread_of_parts(self, dim, correction, keepdim, root, with_mean):
    """The spread of complex elements: ATen adds those of their real and imaginary parts, in the operand's precision."""
    parts = [_spread(part(self), dim, correction, keepdim, False, True) for part in (lax.real, lax.imag)]
    (real, real_mean), (imaginary, imaginary_mean) = parts
    variance = real + imaginary
    out = _root(variance) if root else variance
    return (out, lax.complex(real_mean, imaginary_mean)) if with_mean else out


# aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
@kernel("var.correction")
def var(self, dim=None, correction=None, keepdim=False):
    return _spread(self, dim, correction, keepdim, root=False, with_mean=False)


# aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
@kernel("std.correction")
def std(self, dim=None, correction=None, keepdim=False):
    return _spread(self, dim, correction, keepdim, root=True, with_mean=False)


# aten::var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor,
#     Tensor)
@kernel("var_mean.correction")
def var_mean(self, dim=None, correction=None, keepdim=False):
    return _spread(self, dim, correction, keepdim, root=False, with_mean=True)


# aten::std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor,
#     Tensor)
@kernel("std_mean.correction")
def std_mean(self, dim=None, correction=None, keepdim=False):
    return _spread(self, dim, correction, keepdim, root=True, with_mean=True)
