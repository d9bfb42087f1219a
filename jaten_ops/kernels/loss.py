"""Loss functions and their backward ops."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu import exponentials
from ..kernel_base import checks
from ..kernel_base.promotion import cast, compute_type, result_type, size_number
from .arithmetic import add, mul, true_divide
from .float_functions import log1p_exp
from .reduction import chosen, positions

NONE, MEAN, SUM = 0, 1, 2
"""The values of a `reduction` argument (at::Reduction)."""


def reduced_loss(losses: jax.Array, reduction: int, dtype: np.dtype) -> jax.Array:
    """The losses of elements, or their mean or sum, as `dtype`."""
    if reduction == NONE:
        return cast(losses, dtype)
    out = lax.reduce_sum(losses, tuple(range(losses.ndim)))
    return cast(out / size_number(losses.size, out.dtype) if reduction == MEAN else out, dtype)


def _share(x: jax.Array, reduction: int) -> float:
    """The factor of a gradient that comes from the reduction."""
    return 1 / x.size if reduction == MEAN and x.size else (math.inf if reduction == MEAN else 1)


def _computed(*operands: jax.Array | None) -> tuple[list, np.dtype]:
    """The operands in the computation type of their common dtype, and that dtype."""
    dtype = result_type(*operands)
    return [None if x is None else cast(x, compute_type(dtype)) for x in operands], dtype


# Elementwise losses


# aten::mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor
@kernel("mse_loss")
def mse_loss(self, target, reduction=MEAN):
    (self, target), dtype = _computed(self, target)
    return reduced_loss(lax.square(self - target), reduction, dtype)


# aten::mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor
@kernel("mse_loss_backward")
def mse_loss_backward(grad_output, self, target, reduction):
    (grad_output, self, target), dtype = _computed(grad_output, self, target)
    return cast(2 * _share(self, reduction) * (self - target) * grad_output, dtype)


def _smooth_l1_slope(difference: jax.Array, beta: jax.Array) -> jax.Array:
    one = jnp.ones((), difference.dtype)
    inner = difference / jnp.where(beta == 0, one, beta)
    return jnp.where(difference <= -beta, -one, jnp.where(difference >= beta, one, inner))


@jax.custom_jvp
def _smooth_l1(self: jax.Array, target: jax.Array, beta: jax.Array) -> jax.Array:
    size = lax.abs(self - target)
    one = jnp.ones((), size.dtype)
    return jnp.where(size < beta, 0.5 * size * size / jnp.where(beta == 0, one, beta), size - 0.5 * beta)


@_smooth_l1.defjvp
def _smooth_l1_jvp(primals, tangents):
    # with beta = 0 ATen's slope at 0 is -1, seen from either side
    self, target, beta = primals
    by_self = _smooth_l1_slope(self - target, beta) * tangents[0]
    return _smooth_l1(*primals), by_self + _smooth_l1_slope(target - self, beta) * tangents[1]


# aten::smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor
@kernel("smooth_l1_loss")
def smooth_l1_loss(self, target, reduction=MEAN, beta=1.0):
    checks.require(beta >= 0, RuntimeError, "smooth_l1_loss does not support negative values for beta.")
    (self, target), dtype = _computed(self, target)
    self, target = jnp.broadcast_arrays(self, target)
    return reduced_loss(_smooth_l1(self, target, cast(beta, self.dtype)), reduction, dtype)


# aten::smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) -> Tensor
@kernel("smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad_output, self, target, reduction, beta):
    (grad_output, self, target), dtype = _computed(grad_output, self, target)
    slope = _smooth_l1_slope(self - target, cast(beta, self.dtype))
    return cast(_share(self, reduction) * slope * grad_output, dtype)


# aten::huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor
@kernel("huber_loss")
def huber_loss(self, target, reduction=MEAN, delta=1.0):
    checks.require(delta > 0, RuntimeError, "huber_loss does not support non-positive values for delta.")
    dtype = self.dtype
    (self, target), _ = _computed(self, target)
    delta = cast(delta, self.dtype)
    size = lax.abs(self - target)
    return reduced_loss(jnp.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta)), reduction, dtype)


# aten::huber_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float delta) -> Tensor
@kernel("huber_loss_backward")
def huber_loss_backward(grad_output, self, target, reduction, delta):
    (grad_output, self, target), dtype = _computed(grad_output, self, target)
    delta, difference = cast(delta, self.dtype), self - target
    slope = jnp.where(difference <= -delta, -delta, jnp.where(difference >= delta, delta, difference))
    return cast(_share(self, reduction) * slope * grad_output, dtype)


# ATen's soft margin loss and its gradient are made of other operators, each of which rounds: exp overflows in half


# aten::soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor
@kernel("soft_margin_loss")
def soft_margin_loss(self, target, reduction=MEAN):
    losses = exponentials.log1p(lax.exp(cast(mul(lax.neg(self), target), self.dtype)))
    return reduced_loss(cast(losses, compute_type(self.dtype)), reduction, self.dtype)


# aten::soft_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor
@kernel("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output, self, target, reduction):
    z = lax.exp(mul(lax.neg(target), self))
    out = mul(cast(mul(target, z), self.dtype), -_share(self, reduction))
    out = cast(true_divide(out, add(z, 1)), self.dtype)
    return cast(mul(out, grad_output), self.dtype)


# Cross entropies of two classes: aten/src/ATen/native/Loss.cpp


def _clamped_log(x: jax.Array) -> jax.Array:
    return lax.max(x, np.array(-100, x.dtype))


def _binary_slope(x: jax.Array, target: jax.Array) -> jax.Array:
    return (x - target) / lax.max((1 - x) * x, np.array(1e-12, x.dtype))


@jax.custom_jvp
def _binary_cross_entropy(x: jax.Array, target: jax.Array) -> jax.Array:
    return (target - 1) * _clamped_log(exponentials.log1p(-x)) - target * _clamped_log(lax.log(x))


@_binary_cross_entropy.defjvp
def _binary_cross_entropy_jvp(primals, tangents):
    x, target = primals
    by_target = (lax.log(1 - x) - lax.log(x)) * tangents[1]
    return _binary_cross_entropy(x, target), _binary_slope(x, target) * tangents[0] + by_target


# aten::binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor
@kernel("binary_cross_entropy")
def binary_cross_entropy(self, target, weight=None, reduction=MEAN):
    if self.dtype != target.dtype:
        raise RuntimeError(f"Found dtype {target.dtype} but expected {self.dtype}")
    for name, x in {"input": self, "target": target}.items():
        checks.require((x >= 0) & (x <= 1), RuntimeError, f"all elements of {name} should be between 0 and 1")
    dtype = self.dtype
    (self, target, weight), _ = _computed(self, target, weight)
    losses = _binary_cross_entropy(self, target)
    return reduced_loss(losses if weight is None else losses * weight, reduction, dtype)


# aten::binary_cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight=None,
#     int reduction=1) -> Tensor
@kernel("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad_output, self, target, weight=None, reduction=MEAN):
    dtype = self.dtype
    (grad_output, self, target, weight), _ = _computed(grad_output, self, target, weight)
    grad = _share(self, reduction) * grad_output * _binary_slope(self, target)
    return cast(grad if weight is None else grad * weight, dtype)


# aten::binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None,
#     int reduction=1) -> Tensor
@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(self, target, weight=None, pos_weight=None, reduction=MEAN):
    dtype = target.dtype  # of which ATen's loss is made, in place
    (self, target, weight, pos_weight), _ = _computed(self, target, weight, pos_weight)
    minus_log_sigmoid = log1p_exp(-self)
    if pos_weight is not None:
        minus_log_sigmoid = ((pos_weight - 1) * target + 1) * minus_log_sigmoid
    losses = (1 - target) * self + minus_log_sigmoid
    return reduced_loss(losses if weight is None else losses * weight, reduction, dtype)


# Negative log likelihood: aten/src/ATen/native/LossNLL.cpp and LossNLL2d.cpp. The classes are dimension 1, or 0 of a
# vector; ignore_index counts as no class.


def _check_weight(self: jax.Array, weight: jax.Array | None) -> None:
    if weight is not None and weight.dtype != self.dtype:
        raise RuntimeError(f"expected scalar type {self.dtype} but found {weight.dtype}")


def _class_weights(x: jax.Array, target: jax.Array, weight: jax.Array | None, ignore_index: int):
    """The weight of each target, 0 for ignored ones, and the target with a dimension for the classes."""
    if target.dtype not in (np.int64, np.uint8):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {target.dtype}")
    axis = 1 if x.ndim > 1 else 0
    target = lax.reshape(target, tuple(1 if i == axis else n for i, n in enumerate(x.shape)))
    target = cast(target, "int64")
    kept = target != ignore_index
    inside = (target >= 0) & (target < x.shape[axis])
    checks.require(inside | ~kept, IndexError, "Target is out of bounds.")
    target = jnp.where(kept & inside, target, jnp.zeros((), target.dtype))
    weights = jnp.ones((), x.dtype) if weight is None else cast(weight, x.dtype)[target]
    return jnp.where(kept, weights, jnp.zeros((), x.dtype)), cast(target, "int32"), axis


# aten::{nll_loss_forward, nll_loss2d_forward}(Tensor self, Tensor target, Tensor? weight, int reduction,
#     SymInt ignore_index) -> (Tensor output, Tensor total_weight)
@kernel("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(self, target, weight, reduction, ignore_index):
    _check_weight(self, weight)
    x, dtype = cast(self, compute_type(self.dtype)), self.dtype
    weights, target, axis = _class_weights(x, target, weight, ignore_index)
    fixed = lax.stop_gradient(x)
    picked = chosen(x, jnp.take_along_axis(fixed, target, axis, mode="promise_in_bounds"), target, axis)
    losses = -picked * weights
    losses = jnp.where(weights == 0, jnp.zeros((), x.dtype), losses) if weight is None else losses
    every = tuple(range(x.ndim))
    total = lax.reduce_sum(weights, every)
    if reduction == NONE:
        total = total if x.ndim == 1 else jnp.zeros((), x.dtype)
        return cast(lax.squeeze(losses, (axis,)), dtype), cast(total, dtype)
    loss = lax.reduce_sum(losses, every)
    return cast(loss / total if reduction == MEAN else loss, dtype), cast(total, dtype)


# aten::{nll_loss_backward, nll_loss2d_backward}(Tensor grad_output, Tensor self, Tensor target, Tensor? weight,
#     int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor
@kernel("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    dtype = self.dtype
    x, grad = cast(self, compute_type(dtype)), cast(grad_output, compute_type(dtype))
    weights, target, axis = _class_weights(x, target, weight, ignore_index)
    if reduction == MEAN:
        grad = grad / cast(total_weight, x.dtype)
    elif grad.ndim:
        grad = lax.reshape(grad, target.shape)
    zero = jnp.zeros((), x.dtype)
    at_target = jnp.where(weights == 0, zero, -weights * grad)
    return cast(jnp.where(positions(x.shape, axis) == target, at_target, zero), dtype)


# Margins between classes: aten/src/ATen/native/LossMulti{Margin,LabelMargin}.cpp. The backward ops are the vjps of the
# forward ones.


def _hinge(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, jnp.zeros((), x.dtype))


def _as_rows(x: jax.Array) -> jax.Array:
    return lax.reshape(x, (1, x.size)) if x.ndim < 2 else x


def _check_margin_operands(x: jax.Array, target: jax.Array) -> None:
    if x.ndim > 2 or (x.ndim and not x.shape[-1]):
        raise RuntimeError(f"Expected non-empty vector or matrix with optional 0-dim batch size, got {list(x.shape)}")
    if target.dtype != np.int64:
        raise RuntimeError(f"expected scalar type Long for target, got {target.dtype}")


# aten::multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None,
#     int reduction=1) -> Tensor
@kernel("multi_margin_loss", static=("p",))
def multi_margin_loss(self, target, p=1, margin=1, weight=None, reduction=MEAN):
    if p not in (1, 2):
        raise RuntimeError("only p == 1 and p == 2 supported")
    _check_margin_operands(self, target)
    _check_weight(self, weight)
    samples, classes = _as_rows(self).shape
    if target.ndim > 1 or target.size != samples:
        raise RuntimeError(f"inconsistent target size, expected {samples} but got {list(target.shape)}")
    if weight is not None and (weight.ndim > 1 or weight.size != classes):
        raise RuntimeError(f"inconsistent weight size, expected {classes} but got {list(weight.shape)}")
    x = _as_rows(cast(self, compute_type(self.dtype)))
    target_column = lax.reshape(target, (x.shape[0], 1))
    inside = (target_column >= 0) & (target_column < x.shape[1])
    checks.require(inside, RuntimeError, "target out of range")
    is_target = positions(x.shape, 1) == target_column
    at_target = lax.expand_dims(lax.reduce_sum(jnp.where(is_target, x, jnp.zeros((), x.dtype)), (1,)), (1,))
    terms = _hinge(cast(margin, x.dtype) - at_target + x)
    terms = terms * terms if p == 2 else terms
    if weight is not None:
        terms = terms * cast(weight, x.dtype)[jnp.where(inside, target_column, 0)]
    terms = jnp.where(is_target, jnp.zeros((), x.dtype), terms)
    losses = lax.reduce_sum(terms, (1,)) / np.array(x.shape[1], x.dtype)
    return reduced_loss(losses if target.ndim or reduction else lax.squeeze(losses, (0,)), reduction, self.dtype)


# aten::multi_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, Scalar p, Scalar margin,
#     Tensor? weight=None, int reduction=1) -> Tensor
@kernel("multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=MEAN):
    return _pull(lambda x: multi_margin_loss(x, target, p, margin, weight, reduction), self, grad_output)


def _pull(loss: Callable[[jax.Array], jax.Array], x: jax.Array, grad: jax.Array) -> jax.Array:
    """The gradient of a loss at x for the gradient of its result, which may be broadcast.

    That of a single sample's loss may have one element, as ATen's meta functions have it.
    """
    out, pull = jax.vjp(loss, x)
    grad = grad if out.ndim else lax.reshape(grad, ())
    return pull(jnp.broadcast_to(cast(grad, out.dtype), out.shape))[0]


# aten::multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor is_target)
@kernel("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self, target, reduction):
    _check_margin_operands(self, target)
    if _as_rows(self).shape != _as_rows(target).shape:
        raise RuntimeError(f"inconsistent target size: {list(target.shape)} for input of size: {list(self.shape)}")
    rows = _as_rows(target)
    inside = (rows >= -1) & (rows < _as_rows(self).shape[1])
    checks.require(inside, RuntimeError, "argument #2 'target' is out of range")
    listed = lax.cumsum(cast(rows < 0, "int32"), 1) == 0  # the labels before the first -1
    classes = lax.broadcasted_iota(rows.dtype, (1, 1, _as_rows(self).shape[1]), 2)
    hits = (lax.expand_dims(rows, (2,)) == classes) & lax.expand_dims(listed, (2,))
    is_target = cast(lax.reduce_or(hits, (1,)), self.dtype)
    loss = _multilabel_margin(self, target, reduction, is_target)
    return loss, lax.reshape(is_target, target.shape)


def _multilabel_margin(x: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array) -> jax.Array:
    rows, labels = _as_rows(cast(x, compute_type(x.dtype))), _as_rows(target)
    listed = lax.cumsum(cast(labels < 0, "int32"), 1) == 0
    at_labels = jnp.take_along_axis(rows, jnp.clip(labels, 0, rows.shape[1] - 1), 1, mode="promise_in_bounds")
    counts = lax.expand_dims(listed, (2,)) & lax.expand_dims(_as_rows(is_target) == 0, (1,))
    terms = _hinge(1 - lax.expand_dims(at_labels, (2,)) + lax.expand_dims(rows, (1,)))
    terms = jnp.where(counts, terms, jnp.zeros((), rows.dtype))
    losses = lax.reduce_sum(terms, (1, 2)) / np.array(rows.shape[1], rows.dtype)
    return reduced_loss(losses if x.ndim > 1 or reduction else lax.squeeze(losses, (0,)), reduction, x.dtype)


# aten::multilabel_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction,
#     Tensor is_target) -> Tensor
@kernel("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    return _pull(lambda x: _multilabel_margin(x, target, reduction, is_target), self, grad_output)
