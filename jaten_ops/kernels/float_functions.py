"""Functions of two floating numbers, such as the angle of a point, logarithms of sums, and steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from ..cpu import elementary, exponentials
from ..kernel_base.derivatives import with_partials
from ..kernel_base.promotion import cast, float_type, is_complex, opmath, promote, rounding_to
from . import complex_functions


def _hypot(a: jax.Array, b: jax.Array) -> jax.Array:
    infinite = (lax.abs(a) == jnp.inf) | (lax.abs(b) == jnp.inf)
    a, b = jnp.maximum(lax.abs(a), lax.abs(b)), jnp.minimum(lax.abs(a), lax.abs(b))
    ratio = b / jnp.where(a == 0, jnp.ones_like(a), a)
    return jnp.where(infinite, jnp.full_like(a, jnp.inf), a * lax.sqrt(1 + ratio * ratio))


def _log1p_exp(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, jnp.zeros_like(x)) + exponentials.log1p_exp_of_negative(-lax.abs(x))


log1p_exp = with_partials(_log1p_exp, lambda r, x: lax.logistic(x))
"""log(1 + e^x), also where e^x is infinite."""


def _logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    if is_complex(a.dtype):
        return complex_functions.log_add_exp(*jnp.broadcast_arrays(a, b))
    equal_infinite = (a == b) & ~jnp.isfinite(a)
    return jnp.where(equal_infinite, a, jnp.maximum(a, b) + exponentials.log1p_exp_of_negative(-lax.abs(a - b)))


def _logaddexp2(a: jax.Array, b: jax.Array) -> jax.Array:
    low = exponentials.log1p(lax.exp2(-lax.abs(a - b))) * (1 / jnp.log(2.0).astype(a.dtype))
    return jnp.where((a == b) & (lax.abs(a) == jnp.inf), a, jnp.maximum(a, b) + low)


def _log_unless_both(log, edge):
    def partial(r, x, y):
        both = (x == 0) & (y <= edge)
        return jnp.where(both, jnp.zeros_like(r), log(jnp.where(both, jnp.ones_like(y), y)))

    return partial


def _copysign_partial(r, a, b):
    return jnp.where(a == 0, jnp.zeros_like(r), r / jnp.where(a == 0, jnp.ones_like(a), a))


def _per_square(a: jax.Array, b: jax.Array) -> jax.Array:
    square = a * a + b * b
    return jnp.where(square == 0, square, 1 / jnp.where(square == 0, jnp.ones_like(square), square))


_FLOAT_FUNCTIONS = {
    ("atan2",): with_partials(
        elementary.atan2, lambda r, a, b: b * _per_square(a, b), lambda r, a, b: -a * _per_square(a, b)
    ),
    ("hypot",): with_partials(_hypot, lambda r, a, b: a / r, lambda r, a, b: b / r),
    ("logaddexp",): with_partials(
        _logaddexp, lambda r, a, b: 1 / (1 + lax.exp(b - a)), lambda r, a, b: 1 / (1 + lax.exp(a - b))
    ),
    ("logaddexp2",): with_partials(
        _logaddexp2, lambda r, a, b: 1 / (1 + lax.exp2(b - a)), lambda r, a, b: 1 / (1 + lax.exp2(a - b))
    ),
    ("copysign.Tensor", "copysign.Scalar"): with_partials(jnp.copysign, _copysign_partial, None),
}


def float_kernel_of_two(fn):
    """A kernel from a function of two arrays of floating numbers; rounds the result."""

    def of_two(self, other):
        dtype = float_type(self, other)
        return cast(fn(*opmath(dtype, self, other)), dtype)

    return of_two


# aten::{atan2, hypot, logaddexp, logaddexp2}(Tensor self, Tensor other) -> Tensor
# aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor
# aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor
for _overloads, _fn in _FLOAT_FUNCTIONS.items():
    kernel(*_overloads)(float_kernel_of_two(_fn))


def _times_logarithm(log, edge, by_other):
    def product(self, other):
        dtype = float_type(self, other)
        x, y = opmath(dtype, self, other)
        rounded = rounding_to(dtype)  # ATen's vectors of a short dtype round each step

        def value(x, y):
            return jnp.where((x == 0) & ~jnp.isnan(y), jnp.zeros_like(y), x * rounded(log(y)))

        return cast(with_partials(value, _log_unless_both(log, edge), by_other)(x, y), dtype)

    return product


# aten::xlogy.Tensor(Tensor self, Tensor other) -> Tensor
# aten::xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor
# aten::xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor
kernel("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")(_times_logarithm(lax.log, 0, lambda r, x, y: x / y))

# aten::special_xlog1py(Tensor self, Tensor other) -> Tensor
# aten::special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor
# aten::special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor
kernel("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")(
    _times_logarithm(exponentials.log1p, -1, lambda r, x, y: x / (y + 1))
)


def _nextafter(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.nextafter(*jnp.broadcast_arrays(a, b))


_nextafter_like_aten = with_partials(_nextafter, lambda r, a, b: a != b, None)


# aten::nextafter(Tensor self, Tensor other) -> Tensor
@kernel("nextafter")
def nextafter(self, other):
    return _nextafter_like_aten(*promote(self, other))


# aten::heaviside(Tensor self, Tensor values) -> Tensor
@kernel("heaviside")
def heaviside(self, values):
    self, values = promote(self, values)
    return jnp.where(self == 0, values, cast(self > 0, self.dtype))
