"""Activation functions and their derivatives as ATen defines them, at the edges too.

Source: aten/src/ATen/native/cpu/Activation.cpp. A function and its `<name>_backward` kernel share one slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from ..cpu import exponentials
from ..kernel_base.checks import require
from ..kernel_base.derivatives import with_partials
from ..kernel_base.number_ranges import bound, lower_bound, upper_bound
from ..kernel_base.promotion import cast, compute_type, float_type, is_complex, opmath, result_type, rounding_to
from . import complex_functions
from .float_functions import log1p_exp

_Function = Callable[..., jax.Array]


def _forward(fn: _Function, limits: tuple[_Function, ...] = ()) -> _Function:
    """A kernel from a function of (input, numbers) in the dtype that ATen computes in; rounds the result."""

    def forward(self, *numbers):
        (x,) = opmath(self.dtype, self)
        made = [take(n, x.dtype) for take, n in zip(limits or [bound] * len(numbers), numbers, strict=True)]
        return cast(fn(x, *made), self.dtype)

    return forward


def _backward(fn: _Function) -> _Function:
    """The same for a function of (gradient, input, numbers)."""

    def backward(grad, self, *numbers):
        dtype = result_type(grad, self)
        g, x = opmath(dtype, grad, self)
        return cast(fn(g, x, *(cast(n, x.dtype) for n in numbers)), dtype)

    return backward


def _scaled(slope: _Function) -> _Function:
    """The function of (gradient, input, numbers) that multiplies with the slope at the input."""
    return lambda g, x, *numbers: g * slope(x, *numbers)


def _masked(passes: _Function) -> _Function:
    """The function of (gradient, input, numbers) that lets the gradient pass where a mask is true."""
    return lambda g, x, *numbers: jnp.where(passes(x, *numbers), g, _zero(g))


def _with_slope(fn: _Function, slope: _Function, numbers: int = 0) -> _Function:
    """A function of (input, numbers) that has the given derivative by its input."""
    return with_partials(fn, lambda r, *args: slope(*args), *[None] * numbers)


def _zero(x: jax.Array) -> jax.Array:
    return jnp.zeros_like(x)


def _conj(x: jax.Array) -> jax.Array:
    return lax.conj(x) if is_complex(x.dtype) else x


# --- piecewise linear -----------------------------------------------------------------------------------------------


# aten::relu(Tensor self) -> Tensor
@kernel("relu")
def relu(self):
    return jnp.where(self <= 0, _zero(self), self)


# aten::threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor
kernel("threshold")(_forward(lambda x, threshold, value: jnp.where(x <= threshold, value, x)))
# aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor
kernel("threshold_backward")(_backward(_masked(lambda x, threshold: ~(x <= threshold))))


def _clip(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return jnp.minimum(jnp.maximum(x, low), high)


def _strictly_between(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return (x > low) & (x < high)


# aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor
kernel("hardtanh")(_forward(_with_slope(_clip, _strictly_between, numbers=2), (lower_bound, upper_bound)))
# aten::hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor
kernel("hardtanh_backward")(_backward(_masked(_strictly_between)))


def _leaky(x: jax.Array, slope: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, x * slope)


# aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor
leaky_relu = kernel("leaky_relu")(_forward(_leaky))


def _require_sign_is_kept(is_result: bool, slope: jax.Array | float) -> None:
    """Requires what ATen does of a gradient by a result: with a negative slope that does not tell the input's sign."""
    if is_result:
        message = "the gradient of an in-place activation with a negative slope is not supported; call the other form"
        require(slope >= 0, RuntimeError, message)


# The slope is static: with a traced one, each call would wait for the check of its value.
# aten::leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor
@kernel("leaky_relu_backward", static={"negative_slope"})
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    _require_sign_is_kept(self_is_result, negative_slope)
    return _backward(lambda g, x, slope: jnp.where(x > 0, g, g * slope))(grad_output, self, negative_slope)


_prelu = with_partials(
    _leaky, lambda r, x, w: jnp.where(x > 0, jnp.ones_like(r), w), lambda r, x, w: jnp.where(x > 0, _zero(r), x)
)


# aten::_prelu_kernel(Tensor self, Tensor weight) -> Tensor
@kernel("_prelu_kernel")
def _prelu_kernel(self, weight):
    return cast(_prelu(*opmath(self.dtype, self, weight)), self.dtype)


# aten::_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)
@kernel("_prelu_kernel_backward")
def _prelu_kernel_backward(grad_output, self, weight):
    grad, x, w = opmath(self.dtype, *jnp.broadcast_arrays(grad_output, self, weight))
    by_input, by_weight = jnp.where(x > 0, grad, grad * w), jnp.where(x > 0, _zero(grad), grad * x)
    return cast(by_input, self.dtype), cast(by_weight, self.dtype)


# aten::rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.33333333333333331,
#     bool training=False, Generator? generator=None) -> (Tensor, Tensor noise_out)
@kernel("rrelu_with_noise_functional")
def rrelu_with_noise_functional(self, noise, lower, upper, training, *, key):
    low, high = (bound(n, compute_type(self.dtype)) for n in (lower, upper))
    if not training:
        return leaky_relu(self, (low + high) / 2), lax.copy_p.bind(noise)
    slopes = low + jax.random.uniform(key, self.shape, low.dtype) * (high - low)
    noise = jnp.where(self <= 0, cast(slopes, self.dtype), jnp.ones_like(self))
    return self * noise, noise


# aten::rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, Scalar upper,
#     bool training, bool self_is_result) -> Tensor
@kernel("rrelu_with_noise_backward", static={"lower", "upper"})
def rrelu_with_noise_backward(grad_output, self, noise, lower, upper, training, self_is_result):
    if training:
        return noise * grad_output
    return leaky_relu_backward(grad_output, self, (lower + upper) / 2, self_is_result)


def _hardsigmoid(x: jax.Array) -> jax.Array:
    return _clip(x + 3, _zero(x), jnp.full_like(x, 6)) / 6


def _hardsigmoid_backward(g: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where((x > -3) & (x < 3), g / 6, _zero(g))


def _hardswish_backward(g: jax.Array, x: jax.Array) -> jax.Array:
    inner = jnp.where((x <= -3) | (x >= 3), _zero(x), x)  # NaN stays, as in ATen's code for vectors
    return jnp.where(x <= -3, _zero(g), jnp.where(x >= 3, g, g * (inner / 3 + 0.5)))


def _slope(backward: _Function) -> _Function:
    """The slope from the function of (gradient, input)."""
    return lambda x: backward(jnp.ones_like(x), x)


# aten::hardsigmoid(Tensor self) -> Tensor
kernel("hardsigmoid")(_forward(_with_slope(_hardsigmoid, _slope(_hardsigmoid_backward))))
# aten::hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor
kernel("hardsigmoid_backward")(_backward(_hardsigmoid_backward))
# aten::hardswish(Tensor self) -> Tensor
kernel("hardswish")(_forward(_with_slope(lambda x: x * _hardsigmoid(x), _slope(_hardswish_backward))))
# aten::hardswish_backward(Tensor grad_output, Tensor self) -> Tensor
kernel("hardswish_backward")(_backward(_hardswish_backward))


# --- shrinking ------------------------------------------------------------------------------------------------------


def _outside(x: jax.Array, limit: jax.Array) -> jax.Array:
    return (x > limit) | (x < -limit)


def _shrink(x: jax.Array, limit: jax.Array) -> jax.Array:
    return jnp.where(x > limit, x - limit, jnp.where(x < -limit, x + limit, x * 0))


def _cut_inside(x: jax.Array, limit: jax.Array) -> jax.Array:
    return jnp.where((x >= -limit) & (x <= limit), _zero(x), x)


# aten::hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor
kernel("hardshrink")(_forward(_with_slope(_cut_inside, _outside, numbers=1)))
_softshrink = _forward(_with_slope(_shrink, _outside, numbers=1))


# aten::softshrink(Tensor self, Scalar lambd=0.5) -> Tensor
@kernel("softshrink")
def softshrink(self, lambd=0.5):
    require(lambd >= 0, RuntimeError, "softshrink: lambda must not be negative")
    return _softshrink(self, lambd)


# aten::hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor
# aten::softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor
kernel("hardshrink_backward", "softshrink_backward")(_backward(_masked(_outside)))


# --- exponential ----------------------------------------------------------------------------------------------------


def _elu(x: jax.Array, alpha: jax.Array, scale: jax.Array, input_scale: jax.Array) -> jax.Array:
    return jnp.where(x < 0, exponentials.expm1(x * input_scale) * (alpha * scale), x * scale)


def _elu_slope(x: jax.Array, alpha: jax.Array, scale: jax.Array, input_scale: jax.Array) -> jax.Array:
    others = jnp.where(x >= 0, _zero(x), x)  # which keeps exp from overflow, but not from NaN; at 0 ATen has no slope
    return jnp.where(x > 0, scale, input_scale * alpha * scale * lax.exp(others * input_scale))


def _elu_slope_at_result(y: jax.Array, alpha: jax.Array, scale: jax.Array, input_scale: jax.Array) -> jax.Array:
    return jnp.where(y > 0, scale, input_scale * (jnp.where(y >= 0, _zero(y), y) + alpha * scale))


# aten::elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor
elu = kernel("elu")(_forward(_with_slope(_elu, _elu_slope, numbers=3)))


# aten::celu(Tensor self, Scalar alpha=1.) -> Tensor
@kernel("celu")
def celu(self, alpha):
    wide = bound(alpha, compute_type(self.dtype))
    return elu(self, wide, 1, 1 / wide)


# aten::elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result,
#     Tensor self_or_result) -> Tensor
@kernel("elu_backward", static={"alpha"})
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    _require_sign_is_kept(is_result, alpha)
    slope = _elu_slope_at_result if is_result else _elu_slope
    return _backward(_scaled(slope))(grad_output, self_or_result, alpha, scale, input_scale)


def _softplus(x: jax.Array, beta: jax.Array, threshold: jax.Array) -> jax.Array:
    scaled = x * beta
    return jnp.where(scaled > threshold, x, log1p_exp(scaled) / beta)


def _softplus_slope(x: jax.Array, beta: jax.Array, threshold: jax.Array) -> jax.Array:
    scaled = x * beta
    return jnp.where(scaled > threshold, jnp.ones_like(x), lax.logistic(scaled))


# aten::softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor
kernel("softplus")(_forward(_with_slope(_softplus, _softplus_slope, numbers=2)))
# aten::softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor
kernel("softplus_backward")(_backward(_scaled(_softplus_slope)))


_log_sigmoid = _with_slope(
    lambda x: jnp.minimum(x, _zero(x)) - exponentials.log1p_exp_of_negative(-lax.abs(x)), lambda x: lax.logistic(-x)
)


# aten::log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)
@kernel("log_sigmoid_forward")
def log_sigmoid_forward(self):
    return _forward(_log_sigmoid)(self), _forward(lambda x: lax.exp(-lax.abs(x)))(lax.stop_gradient(self))


# aten::log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor
@kernel("log_sigmoid_backward")
def log_sigmoid_backward(grad_output, self, buffer):
    return _backward(lambda g, x: g * lax.logistic(-x))(grad_output, self)  # the buffer is a function of self


# --- sigmoid and its kin --------------------------------------------------------------------------------------------


def _logistic(x: jax.Array) -> jax.Array:
    return complex_functions.sigmoid(x) if is_complex(x.dtype) else lax.logistic(x)


def _silu(x: jax.Array) -> jax.Array:
    return complex_functions.times_sigmoid(x) if is_complex(x.dtype) else x * lax.logistic(x)


def _silu_slope(x: jax.Array) -> jax.Array:
    sigmoid = _logistic(x)
    return sigmoid * (1 + x * (1 - sigmoid))


# aten::silu(Tensor self) -> Tensor
kernel("silu")(_forward(_with_slope(_silu, _silu_slope)))
# aten::silu_backward(Tensor grad_output, Tensor self) -> Tensor
kernel("silu_backward")(_backward(_scaled(_silu_slope)))


def _mish(x: jax.Array) -> jax.Array:
    return x * lax.tanh(log1p_exp(x))


def _mish_slope(x: jax.Array) -> jax.Array:
    tanh = lax.tanh(log1p_exp(x))
    return tanh + x * lax.logistic(x) * (1 - tanh * tanh)


# aten::mish(Tensor self) -> Tensor
kernel("mish")(_forward(_with_slope(_mish, _mish_slope)))
# aten::mish_backward(Tensor grad_output, Tensor self) -> Tensor
kernel("mish_backward")(_backward(_scaled(_mish_slope)))

# aten::sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor
kernel("sigmoid_backward")(_backward(lambda g, y: g * _conj((1 - y) * y)))
# aten::tanh_backward(Tensor grad_output, Tensor output) -> Tensor
kernel("tanh_backward")(_backward(lambda g, y: g * _conj(1 - y * y)))


def _logit_of(dtype: jnp.dtype) -> _Function:
    """The log-odds, of which ATen's vectors round each step to the dtype."""
    rounded = rounding_to(dtype)
    return lambda x: jnp.where(x == 1, jnp.full_like(x, jnp.inf), lax.log(rounded(x / rounded(1 - x))))


def _logit_backward(eps: float | None, dtype: jnp.dtype) -> _Function:
    """The gradient by (gradient, input): beyond the bounds there is none."""
    low, high, outside = (0, 1, math.nan) if eps is None else (*_bounds(eps, dtype), 0)
    return lambda g, x: jnp.where((x >= low) & (x <= high), g / (x * (1 - x)), jnp.full_like(x, outside))


def _bounds(eps: float, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
    """eps and 1 - eps, as numbers of a dtype."""
    return opmath(dtype, cast(eps, dtype), 1 - cast(eps, dtype))


# aten::logit(Tensor self, float? eps=None) -> Tensor
@kernel("logit", static=("eps",))
def logit(self, eps):
    x = cast(self, float_type(self))
    eps = None if eps is None or eps < 0 else eps
    value, slope = _logit_of(x.dtype), _slope(_logit_backward(eps, x.dtype))
    if eps is None:
        return _forward(_with_slope(value, slope))(x)
    low, high = _bounds(eps, x.dtype)
    return _forward(_with_slope(lambda x: value(jnp.where(x < low, low, jnp.where(x > high, high, x))), slope))(x)


# aten::logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor
@kernel("logit_backward", static=("eps",))
def logit_backward(grad_output, self, eps):
    return _backward(_logit_backward(None if eps is None or eps < 0 else eps, self.dtype))(grad_output, self)


# --- gelu -----------------------------------------------------------------------------------------------------------


def _gelu(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


def _gelu_slope(x: jax.Array) -> jax.Array:
    density = lax.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return 0.5 * (1 + lax.erf(x * math.sqrt(0.5))) + x * density


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + lax.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu_tanh_slope(x: jax.Array) -> jax.Array:
    beta, kappa = math.sqrt(2 / math.pi), 0.044715
    tanh = lax.tanh(beta * (x + kappa * x * x * x))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * beta * (1 + 3 * kappa * x * x)


_GELU = {"none": (_gelu, _gelu_slope), "tanh": (_gelu_tanh, _gelu_tanh_slope)}
_GELU_FORWARD = {name: _forward(_with_slope(*pair)) for name, pair in _GELU.items()}
_GELU_BACKWARD = {name: _backward(_scaled(slope)) for name, (_, slope) in _GELU.items()}


# aten::gelu(Tensor self, *, str approximate="none") -> Tensor
@kernel("gelu")
def gelu(self, *, approximate):
    return _GELU_FORWARD[approximate](self)


# aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor
@kernel("gelu_backward")
def gelu_backward(grad_output, self, *, approximate):
    return _GELU_BACKWARD[approximate](grad_output, self)


# --- glu ------------------------------------------------------------------------------------------------------------


def _halves(x: jax.Array, dim: int) -> list[jax.Array]:
    dim %= x.ndim
    return jnp.split(x, 2, axis=dim)


# aten::glu(Tensor self, int dim=-1) -> Tensor
@kernel("glu")
def glu(self, dim):
    a, b = _halves(*opmath(self.dtype, self), dim)
    return cast(a * lax.logistic(b), self.dtype)


# aten::glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor
@kernel("glu_backward")
def glu_backward(grad_output, self, dim):
    grad, x = opmath(self.dtype, grad_output, self)
    a, b = _halves(x, dim)
    sigmoid = lax.logistic(b)
    return cast(jnp.concatenate([grad * sigmoid, grad * a * sigmoid * (1 - sigmoid)], axis=dim), self.dtype)


# aten::glu_jvp(Tensor glu, Tensor x, Tensor dx, int dim) -> Tensor
@kernel("glu_jvp")
def glu_jvp(glu, x, dx, dim):
    _, b = _halves(x, dim)
    da, db = _halves(dx, dim)
    sigmoid = lax.logistic(b)
    return da * sigmoid + glu * (db - sigmoid * db)


# aten::glu_backward_jvp(Tensor grad_x, Tensor grad_glu, Tensor x, Tensor dgrad_glu, Tensor dx, int dim) -> Tensor
@kernel("glu_backward_jvp")
def glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    _, pushed = jax.jvp(lambda g, x: glu_backward(g, x, dim), (grad_glu, x), (dgrad_glu, dx))
    return pushed
