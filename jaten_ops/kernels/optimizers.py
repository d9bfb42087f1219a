"""Steps of optimizers and of gradient scalers, as functions of parameters and state.

Source: aten/src/ATen/native/cpu/Fused*Kernel.cpp and AmpGradScalerKernels.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, compute_type

Update = Callable[..., tuple[jax.Array, ...]]


def _update_all(
    update: Update,
    params: Sequence[jax.Array],
    grads: Sequence[jax.Array],
    states: Sequence[Sequence[jax.Array]],
    steps: Sequence[jax.Array],
    scale: jax.Array | None,
    found_inf: jax.Array | None,
) -> tuple[list[jax.Array], ...]:
    """Updates each parameter and its states.

    Args:
        update: from (parameter, gradient, states, step) the new parameter and states, all in the dtype that ATen
            computes in; a list of states may be empty, and then has no state for the parameter.
        states: the lists of states.
        steps: for each parameter its number of steps; empty if `update` does not need it.
        scale: what the gradients have to be divided by.
        found_inf: 1 where nothing is to be changed.

    Returns:
        The parameters, the unscaled gradients and the lists of states.
    """
    results: list[list[jax.Array]] = [[] for _ in range(2 + len(states))]
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        wide = compute_type(param.dtype)
        unscaled = cast(grad, wide) if scale is None else cast(grad, wide) / cast(scale, wide)
        held = [state[i] if state else None for state in states]
        step = cast(steps[i], jnp.float64) if steps else None
        new = update(cast(param, wide), unscaled, [None if s is None else cast(s, wide) for s in held], step)
        for result, old, value in zip(results, (param, grad, *held), (new[0], unscaled, *new[1:]), strict=True):
            if old is not None:
                value = cast(value, old.dtype)
                result.append(value if found_inf is None else jnp.where(jnp.ravel(found_inf)[0] == 1, old, value))
    return tuple(results)


def _signed(grad: jax.Array, maximize: bool) -> jax.Array:
    return -grad if maximize else grad


def _adam(decoupled: bool) -> Callable[..., tuple[list[jax.Array], ...]]:
    """Adam, or AdamW whose weight decay is decoupled from the gradient."""

    def adam(
        self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps,
        *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf,
    ):  # fmt: skip
        def update(param, grad, states, step):
            avg, avg_sq, max_avg_sq = states
            grad = _signed(grad, maximize)
            rate = cast(lr, jnp.float64)
            if decoupled:
                param = param * cast(1 - rate * weight_decay, param.dtype)
            else:
                grad = grad + param * cast(weight_decay, param.dtype)
            avg = avg + cast(1 - beta1, avg.dtype) * (grad - avg)
            avg_sq = avg_sq * cast(beta2, avg.dtype) + cast(1 - beta2, avg.dtype) * grad * grad
            step_size = cast(rate / (1 - lax.pow(cast(beta1, step.dtype), step)), param.dtype)
            correction = cast(lax.sqrt(1 - lax.pow(cast(beta2, step.dtype), step)), param.dtype)
            if amsgrad:
                max_avg_sq = lax.max(max_avg_sq, avg_sq)
            root = lax.sqrt(max_avg_sq if amsgrad else avg_sq)
            param = param - step_size * avg / (root / correction + cast(eps, param.dtype))
            return param, avg, avg_sq, max_avg_sq

        states = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
        return _update_all(update, self, grads, states, state_steps, grad_scale, found_inf)

    return adam


# aten::_fused_adam(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, Tensor[] max_exp_avg_sqs,
#     Tensor[] state_steps, *, float lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad,
#     bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out,
#     Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)
# aten::_fused_adam.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs,
#     Tensor[] max_exp_avg_sqs, Tensor[] state_steps, *, Tensor lr, float beta1, float beta2, float weight_decay,
#     float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out,
#     Tensor[] grads_out, Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)
kernel("_fused_adam", "_fused_adam.tensor_lr")(_adam(decoupled=False))
# aten::_fused_adamw(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, Tensor[] max_exp_avg_sqs,
#     Tensor[] state_steps, *, float lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad,
#     bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out,
#     Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)
# aten::_fused_adamw.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs,
#     Tensor[] max_exp_avg_sqs, Tensor[] state_steps, *, Tensor lr, float beta1, float beta2, float weight_decay,
#     float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out,
#     Tensor[] grads_out, Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)
kernel("_fused_adamw", "_fused_adamw.tensor_lr")(_adam(decoupled=True))


# aten::_fused_sgd(Tensor[] self, Tensor[] grads, Tensor[] momentum_buffer_list, *, float weight_decay, float momentum,
#     float lr, float dampening, bool nesterov, bool maximize, bool is_first_step, Tensor? grad_scale=None,
#     Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] momentum_buffer_list_out)
# aten::_fused_sgd.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] momentum_buffer_list, *, float weight_decay,
#     float momentum, Tensor lr, float dampening, bool nesterov, bool maximize, bool is_first_step,
#     Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out,
#     Tensor[] momentum_buffer_list_out)
@kernel("_fused_sgd", "_fused_sgd.tensor_lr")
def _fused_sgd(
    self, grads, momentum_buffer_list,
    *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale, found_inf,
):  # fmt: skip
    def update(param, grad, states, _):
        (buffer,) = states
        grad = _signed(grad, maximize) + param * cast(weight_decay, param.dtype)
        if buffer is not None:
            rate, active = cast(momentum, param.dtype), cast(momentum, bool)
            new = grad if is_first_step else buffer * rate + grad * cast(1 - dampening, param.dtype)
            buffer = jnp.where(active, new, buffer)
            grad = jnp.where(active, grad + rate * buffer if nesterov else buffer, grad)
        return param - cast(lr, param.dtype) * grad, buffer

    return _update_all(update, self, grads, (momentum_buffer_list,), (), grad_scale, found_inf)


def _adagrad(self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf):
    def update(param, grad, states, step):
        (total,) = states
        grad = _signed(grad, maximize) + param * cast(weight_decay, param.dtype)
        total = total + grad * grad
        rate = cast(cast(lr, jnp.float64) / (1 + (step - 1) * lr_decay), param.dtype)
        return param - rate * grad / (lax.sqrt(total) + cast(eps, param.dtype)), total

    return _update_all(update, self, grads, (state_sums,), state_steps, grad_scale, found_inf)


# aten::_fused_adagrad(Tensor[] self, Tensor[] grads, Tensor[] state_sums, Tensor[] state_steps, *, float lr,
#     float lr_decay, float weight_decay, float eps, bool maximize, Tensor? grad_scale=None,
#     Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] state_sums_out,
#     Tensor[] state_steps_out)
@kernel("_fused_adagrad")
def _fused_adagrad(self, grads, state_sums, state_steps, **options):
    return (*_adagrad(self, grads, state_sums, state_steps, **options), [lax.copy_p.bind(s) for s in state_steps])


# aten::_fused_adagrad.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] state_sums, Tensor[] state_steps, *, Tensor lr,
#     float lr_decay, float weight_decay, float eps, bool maximize, Tensor? grad_scale=None,
#     Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] state_sums_out)
@kernel("_fused_adagrad.tensor_lr")
def _fused_adagrad_tensor_lr(self, grads, state_sums, state_steps, **options):
    return _adagrad(self, grads, state_sums, state_steps, **options)


# --- gradient scaling -----------------------------------------------------------------------------------------------


# aten::_amp_foreach_non_finite_check_and_unscale(Tensor[] self, Tensor found_inf,
#     Tensor inv_scale) -> (Tensor[] self_out, Tensor found_inf_out)
@kernel("_amp_foreach_non_finite_check_and_unscale")
def _amp_foreach_non_finite_check_and_unscale(self, found_inf, inv_scale):
    for x in self:
        found_inf = jnp.where(jnp.all(jnp.isfinite(x)), found_inf, jnp.ones_like(found_inf))
    return [
        cast(cast(x, compute_type(x.dtype)) * cast(inv_scale, compute_type(x.dtype)), x.dtype) for x in self
    ], found_inf


# aten::_amp_update_scale(Tensor self, Tensor growth_tracker, Tensor found_inf, float scale_growth_factor,
#     float scale_backoff_factor, int growth_interval) -> (Tensor, Tensor growth_tracker_out)
@kernel("_amp_update_scale")
def _amp_update_scale(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    failed = cast(found_inf, bool)
    successful = growth_tracker + 1
    due = successful == growth_interval
    grown = self * cast(scale_growth_factor, self.dtype)
    kept = jnp.where(due & jnp.isfinite(grown), grown, self)
    scale = jnp.where(failed, self * cast(scale_backoff_factor, self.dtype), kept)
    return scale, jnp.where(failed | due, jnp.zeros_like(growth_tracker), successful)
