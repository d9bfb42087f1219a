"""A step of `Adam` and `AdamW` over lists of the device's tensors, as one program.

torch's own makes of a step ten operators on lists, each a program. Here are its operators in its order, so the values
are the same up to rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..tracing import opaque
from ..xla import malloc
from ..xla.jitted import jitted
from .list_steps import Arrays, list_step


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
    step = list_step((params, *states), grads) if all(s.is_cpu for s in steps) else None
    if step is None:
        return False
    times = [taken.item() + 1 for taken in steps]
    numbers = np.array(
        [1 - lr * weight_decay if decoupled else weight_decay, 1 - beta1, beta2, 1 - beta2, eps]
        + [-(lr / (1 - beta1**time)) for time in times]
        + [(1 - beta2**time) ** 0.5 for time in times]
    )
    step.run(_program(step.given, decoupled if weight_decay else None, maximize, amsgrad), numbers)
    torch._foreach_add_(list(steps), torch.tensor(1.0))  # last: a step that fails counts for nothing
    return True


@functools.cache
def _program(given: bool, decoupled: bool | None, maximize: bool, amsgrad: bool) -> Callable[..., Any]:
    """The program of a step.

    Args:
        given: whether the arrays of parameters and states are overwritten.
        decoupled: whether the decay of weights is apart from the gradient; None without such a decay.
        maximize, amsgrad: as in `adam_step`.
    """

    def jaten_adam_step(params: Arrays, *rest: Any) -> tuple[list[jax.Array], ...]:
        *states, grads, numbers = rest
        kind, count = params[0].dtype, len(params)
        decay, weight, beta2, weight2, eps, *others = [x.astype(kind) for x in numbers]
        results: tuple[list[jax.Array], ...] = tuple([] for _ in range(1 + len(states)))
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            grad = -grad if maximize else grad
            if decoupled:
                param = param * decay
            elif decoupled is not None:
                grad = grad + param * decay
            average, square = states[0][i], states[1][i]
            change = grad - average
            average = jnp.where(weight < 0.5, average + weight * change, grad - change * (1 - weight))
            square = square * beta2 + weight2 * grad * grad
            held = jnp.maximum(states[2][i], square) if amsgrad else square
            root = jnp.sqrt(held) / others[count + i] + eps
            new = (param + others[i] * average / root, average, square, held)
            for result, value in zip(results, new, strict=False):
                result.append(value)
        return results

    malloc.retain()
    written = 3 + amsgrad
    return jitted(jaten_adam_step, donate_argnums=range(written) if given else ())
