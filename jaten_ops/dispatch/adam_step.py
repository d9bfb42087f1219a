"""A step of `Adam` and `AdamW` over lists of the device's tensors.

torch's own makes of a step ten operators on lists, each a program. Here are its operators in its order in one, so the
values are the same up to rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from ..tracing import opaque
from .list_steps import Arrays, ListUpdate, list_step


@opaque
def adam_step(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    states: Sequence[Sequence[torch.Tensor]],
    steps: Sequence[torch.Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> bool:
    """Updates parameters and their states in place, and their numbers of steps; False if it has changed nothing.

    Args:
        params, grads: of any shapes, float32 or float64, all of one dtype.
        states: the averages of gradients and of their squares, and with `amsgrad` the greatest of the latter.
        steps: for each parameter a tensor of the CPU.
        lr, beta1, beta2, weight_decay, eps, amsgrad, maximize: as `torch.optim.Adam` has them.
        decoupled: whether it is `AdamW`.
    """
    update = _update(decoupled if weight_decay else None, maximize, amsgrad)
    step = list_step(update, (params, *states), grads) if all(s.is_cpu for s in steps) else None
    if step is None:
        return False
    times = [taken.item() + 1 for taken in steps]
    shared = [1 - lr * weight_decay if decoupled else weight_decay, 1 - beta1, beta2, 1 - beta2, eps]
    own = [(-(lr / (1 - beta1**time)), (1 - beta2**time) ** 0.5) for time in times]
    step.run(update, shared, own)
    torch._foreach_add_(list(steps), torch.tensor(1.0))  # last: a step that fails counts for nothing
    return True


@functools.cache
def _update(decoupled: bool | None, maximize: bool, amsgrad: bool) -> ListUpdate:
    """The update of a parameter.

    Args:
        decoupled: whether the decay of weights is apart from the gradient; None without such a decay.
        maximize, amsgrad: as in `adam_step`.
    """

    def update(numbers: Arrays, param: jax.Array, *rest: jax.Array) -> Arrays:
        average, square, *greatest, grad = rest
        decay, weight, beta2, weight2, eps, rate, scale = numbers
        grad = -grad if maximize else grad
        if decoupled:
            param = param * decay
        elif decoupled is not None:
            grad = grad + param * decay
        change = grad - average
        average = jnp.where(weight < 0.5, average + weight * change, grad - change * (1 - weight))
        square = square * beta2 + weight2 * grad * grad
        held = jnp.maximum(greatest[0], square) if amsgrad else square
        root = jnp.sqrt(held) / scale + eps
        return (param + rate * average / root, average, square, held)[: 3 + amsgrad]

    return ListUpdate(update, shared=5, written=3 + amsgrad, name="jaten_adam_step")
