"""Connectionist temporal classification: aten/src/ATen/native/LossCTC.cpp.

The labels of a sample are extended by blanks to 2 S + 1 states (blank, l1, blank, l2, ..., blank); states beyond twice
the target's length are never entered.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel
from jaten_ops.xla.jitted import jitted

from ..kernel_base.checks import require

NEVER = -np.inf


def _extended(targets: jax.Array, target_lengths: jax.Array, states: int, blank: int) -> tuple[jax.Array, jax.Array]:
    """The label of each state (batch, states), and whether it may be entered from two states before."""
    size = states // 2
    at = lax.iota(np.int64, size)[None, :]
    if targets.ndim == 1:  # one sample's targets after the other's
        starts = lax.cumsum(target_lengths) - target_lengths
        labels = jnp.take(targets, starts[:, None] + at, mode="clip") if targets.size else jnp.zeros((1, size), "int64")
    else:
        labels = targets[:, :size]
    labels = jnp.where(at < target_lengths[:, None], labels, blank)
    labels = jnp.broadcast_to(labels, (target_lengths.shape[0], size))
    # interleave with blanks, and one blank more
    pairs = jnp.stack([jnp.full_like(labels, blank), labels], 2)
    extended = jnp.pad(lax.reshape(pairs, (labels.shape[0], 2 * size)), ((0, 0), (0, 1)), constant_values=blank)
    skip = jnp.pad(extended[:, 2:] != extended[:, :-2], ((0, 0), (2, 0))) if size else jnp.zeros(extended.shape, bool)
    return extended, skip


def _log_sum(*terms: jax.Array) -> jax.Array:
    """log(sum(exp(terms))), -inf if all are."""
    highest = jnp.stack(terms).max(0)
    highest = jnp.where(highest == NEVER, jnp.zeros((), highest.dtype), highest)
    return jnp.log(sum(jnp.exp(t - highest) for t in terms)) + highest


def _shifted(x: jax.Array, by: int) -> jax.Array:
    """x shifted along its last axis, filled with -inf."""
    padding = ((0, 0), (by, 0)) if by > 0 else ((0, 0), (0, -by))
    padded = jnp.pad(x, padding, constant_values=NEVER)
    return padded[:, : x.shape[1]] if by > 0 else padded[:, -x.shape[1] :]


def _emissions(log_probs: jax.Array, extended: jax.Array) -> jax.Array:
    """The log-probability of each state's label at each time: (time, batch, states)."""
    index = jnp.broadcast_to(extended[None], (log_probs.shape[0], *extended.shape))
    return jnp.take_along_axis(log_probs, index, 2, mode="clip")


def _forward(log_probs, targets, input_lengths, target_lengths, states: int, blank: int):
    extended, skip = _extended(targets, target_lengths, states, blank)
    emitted = _emissions(log_probs, extended)
    state = lax.iota(np.int64, states)[None, :]
    reachable = state <= 2 * target_lengths[:, None]
    first = jnp.where(reachable & (state < 2), emitted[0], NEVER)

    def step(alpha: jax.Array, emission: jax.Array) -> tuple[jax.Array, jax.Array]:
        skipped = jnp.where(skip, _shifted(alpha, 2), NEVER)
        alpha = jnp.where(reachable, _log_sum(alpha, _shifted(alpha, 1), skipped) + emission, NEVER)
        return alpha, alpha

    _, later = lax.scan(step, first, emitted[1:])
    alphas = jnp.moveaxis(jnp.concatenate([first[None], later]), 0, 1)
    last = jnp.take_along_axis(alphas, jnp.maximum(input_lengths - 1, 0)[:, None, None], 1)[:, 0]
    end = jnp.take_along_axis(last, 2 * target_lengths[:, None], 1)[:, 0]
    before = jnp.take_along_axis(last, jnp.maximum(2 * target_lengths - 1, 0)[:, None], 1)[:, 0]
    before = jnp.where(target_lengths > 0, before, NEVER)
    nothing = jnp.where(target_lengths == 0, 0.0, np.inf).astype(log_probs.dtype)
    return jnp.where(input_lengths == 0, nothing, -_log_sum(end, before)), alphas


def _backward(grad, log_probs, targets, input_lengths, target_lengths, loss, alphas, blank: int, zero_infinity: bool):
    states = alphas.shape[2]
    extended, skip = _extended(targets, target_lengths, states, blank)
    emitted = _emissions(log_probs, extended)
    state, length = lax.iota(np.int64, states)[None, :], target_lengths[:, None]
    final = (state == 2 * length) | (state == 2 * length - 1)
    leads = jnp.pad(skip[:, 2:], ((0, 0), (0, 2))) if states > 2 else jnp.zeros_like(skip)

    def step(beta: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        time, emission = inputs
        skipped = jnp.where(leads, _shifted(beta, -2), NEVER)
        onward = jnp.where(state <= 2 * length, _log_sum(beta, _shifted(beta, -1), skipped) + emission, NEVER)
        left = input_lengths[:, None] - 1 - time
        beta = jnp.where(left == 0, jnp.where(final, emission, NEVER), jnp.where(left > 0, onward, NEVER))
        return beta, beta

    times = lax.iota(np.int64, log_probs.shape[0])
    _, betas = lax.scan(step, jnp.full_like(emitted[0], NEVER), (times, emitted), reverse=True)
    # the probability of being in a state at a time; both alpha and beta hold the state's emission
    occupied = jnp.exp(jnp.moveaxis(alphas, 1, 0) + betas + loss[None, :, None] - emitted)
    # alpha beyond a sample's states and times is not specified
    entered = (state <= 2 * length)[None] & (times[:, None, None] < input_lengths[None, :, None])
    occupied = jnp.where(entered, occupied, jnp.zeros((), occupied.dtype))
    (by_label,) = jax.linear_transpose(lambda x: _emissions(x, extended), log_probs)(occupied)
    infinite = (loss == np.inf)[None, :, None]
    by_label = jnp.where(infinite, jnp.full((), 0 if zero_infinity else np.nan, log_probs.dtype), by_label)
    out = (jnp.exp(log_probs) - by_label) * grad[None, :, None]
    if zero_infinity:
        out = jnp.where(infinite, jnp.zeros((), out.dtype), out)
    return jnp.where(times[:, None, None] < input_lengths[None, :, None], out, jnp.zeros((), out.dtype))


_run_forward = jitted(_forward, static_argnums=(4, 5))
_run_backward = jitted(_backward, static_argnums=(7, 8))


def _check(log_probs, targets, input_lengths: Any, target_lengths: Any, blank: int) -> None:
    """Raises ATen's errors; those about lengths without values are raised after the call."""
    time, batch, labels = log_probs.shape
    if not 0 <= blank < labels:
        raise RuntimeError("blank must be in label range")
    if input_lengths.size != batch or target_lengths.size != batch:
        raise RuntimeError("input_lengths and target_lengths must be of size batch_size")
    in_range = ((input_lengths >= 0) & (input_lengths <= time)).all()
    _require(in_range, f"Expected input_lengths to have values from 0 to {time}", input_lengths)
    _require((target_lengths >= 0).all(), "Expected target_lengths to have value at least 0", target_lengths)
    if targets.ndim == 1:
        count = targets.size
        _require(target_lengths.sum() == count, f"Expected target_lengths of {count} targets", target_lengths)
    elif targets.shape[0] != batch:
        raise RuntimeError(f"Expected targets of {batch} samples, but got {targets.shape[0]}")
    else:
        width = targets.shape[1]
        _require((target_lengths <= width).all(), f"Expected target_lengths of {width} at most", target_lengths)


def _require(holds: Any, message: str, lengths: Any) -> None:
    if isinstance(holds, jax.core.Tracer):
        require(holds, RuntimeError, message)
    else:
        require(bool(holds), RuntimeError, f"{message}, but got {lengths.tolist()}")


def _is_concrete(log_probs: Any, *args: Any, **kwargs: Any) -> bool:
    # the lengths differ in each batch: outside of graphs they are arguments of the inner executable, not constants
    return not isinstance(log_probs, jax.core.Tracer)


# aten::_ctc_loss(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, int blank=0,
#     bool zero_infinity=False) -> (Tensor, Tensor)
@kernel("_ctc_loss", eager=_is_concrete)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    lengths = (np.asarray(input_lengths, np.int64), np.asarray(target_lengths, np.int64))
    _check(log_probs, targets, *lengths, blank)
    return _run_forward(log_probs, targets, *lengths, 2 * max(target_lengths, default=0) + 1, blank)


# aten::_ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0,
#     bool zero_infinity=False) -> (Tensor, Tensor)
@kernel("_ctc_loss.Tensor", eager=True)
def ctc_loss_tensor(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    if not any(isinstance(n, jax.core.Tracer) for n in (input_lengths, target_lengths)):
        lengths = (tuple(np.atleast_1d(n).tolist()) for n in (input_lengths, target_lengths))
        return ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    traced = _as_vectors(input_lengths, target_lengths)
    _check(log_probs, targets, *traced, blank)
    longest = targets.shape[-1]  # of one sample all targets may be, if they lie one after the other
    return _run_forward(log_probs, targets, *traced, 2 * longest + 1, blank)


def _as_vectors(*lengths: jax.Array) -> list[jax.Array]:
    return [lax.convert_element_type(lax.reshape(n, (n.size,)), np.int64) for n in lengths]


# aten::_ctc_loss_backward.Tensor(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths,
#     Tensor target_lengths, Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool zero_infinity=False) -> Tensor
@kernel("_ctc_loss_backward.Tensor")
def ctc_loss_backward_tensor(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    lengths = _as_vectors(input_lengths, target_lengths)
    return _run_backward(grad, log_probs, targets, *lengths, neg_log_likelihood, log_alpha, blank, zero_infinity)


# aten::_ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths,
#     Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool zero_infinity=False) -> Tensor
@kernel("_ctc_loss_backward", eager=lambda grad, *args, **kwargs: _is_concrete(grad))
def ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    lengths = (np.asarray(input_lengths, np.int64), np.asarray(target_lengths, np.int64))
    return _run_backward(grad, log_probs, targets, *lengths, neg_log_likelihood, log_alpha, blank, zero_infinity)
