"""A step of `SGD` over lists of the device's tensors.

Here are torch's operators in its order, so the values are the same up to rounding. With `nesterov` torch's step over
lists writes to gradients, and is left to torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import torch

from ..tensor.tensor import from_array
from ..tracing import opaque
from .list_steps import Arrays, ListUpdate, list_step


@opaque
def sgd_step(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    buffers: list[torch.Tensor | None],
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    dampening: float,
    maximize: bool,
) -> bool:
    """Updates parameters and their momentum buffers in place; False if it has changed nothing.

    Args:
        params, grads: of any shapes, float32 or float64, all of one dtype.
        buffers: for each parameter its momentum; None before its first step, which puts one there. Empty without
            momentum.
        lr, weight_decay, momentum, dampening, maximize: as `torch.optim.SGD` has them.
    """
    states = [buffer for buffer in buffers if buffer is not None] if momentum else []
    if len(states) not in (0, len(params)):  # some take their first step
        return False
    update = _update(bool(weight_decay), None if not momentum else "on" if states else "first", maximize)
    step = list_step(update, (params, states) if states else (params,), grads)
    if step is None:
        return False
    made = step.run(update, [-lr, weight_decay, momentum, 1 - dampening])
    if made:
        buffers[:] = map(from_array, made)
    return True


@functools.cache
def _update(decays: bool, moves: str | None, maximize: bool) -> ListUpdate:
    """The update of a parameter.

    Args:
        decays: whether weights decay.
        moves: "first" with a momentum that begins, "on" with one that is there.
        maximize: as in `sgd_step`.
    """

    def update(numbers: Arrays, param: jax.Array, *rest: jax.Array) -> Arrays:
        *buffers, grad = rest
        rate, decay, momentum, weight = numbers
        change = -grad if maximize else grad
        if decays:
            change = change + param * decay
        if moves == "on":
            change = buffers[0] * momentum + weight * change
        moved = param + rate * change
        return (moved,) if moves is None else (moved, change)

    return ListUpdate(update, shared=4, written=2 if moves == "on" else 1, name="jaten_sgd_step")
