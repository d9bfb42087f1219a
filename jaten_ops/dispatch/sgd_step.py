"""A step of `SGD` over lists of the device's tensors, as one program.

Here are torch's operators in its order, so the values are the same up to rounding. With `nesterov` torch's step over
lists writes to gradients, and is left to torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..tensor.tensor import from_array
from ..tracing import opaque
from ..xla import malloc
from ..xla.jitted import jitted
from .list_steps import Arrays, list_step


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
    step = list_step((params, states) if states else (params,), grads)
    if step is None:
        return False
    moves = None if not momentum else "on" if states else "first"
    program = _program(step.given, bool(weight_decay), moves, maximize)
    made = step.run(program, np.array([-lr, weight_decay, momentum, 1 - dampening]))
    if made:
        buffers[:] = map(from_array, made)
    return True


@functools.cache
def _program(given: bool, decays: bool, moves: str | None, maximize: bool) -> Callable[..., Any]:
    """The program of a step.

    Args:
        given: whether the arrays of parameters and buffers are overwritten.
        decays: whether weights decay.
        moves: "first" with a momentum that begins, "on" with one that is there.
        maximize: as in `sgd_step`.
    """

    def jaten_sgd_step(params: Arrays, *rest: Any) -> tuple[Arrays, ...]:
        *states, grads, numbers = rest
        rate, decay, momentum, weight = [x.astype(params[0].dtype) for x in numbers]
        changes = [-g if maximize else g for g in grads]
        if decays:
            changes = [g + p * decay for p, g in zip(params, changes, strict=True)]
        buffers = changes
        if moves == "on":
            buffers = [b * momentum + weight * g for b, g in zip(states[0], changes, strict=True)]
        moved = [p + rate * b for p, b in zip(params, buffers, strict=True)]
        return (moved,) if moves is None else (moved, buffers)

    malloc.retain()
    written = 2 if moves == "on" else 1
    return jitted(jaten_sgd_step, donate_argnums=range(written) if given else ())
