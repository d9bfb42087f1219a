"""A step of `Adam` and `AdamW` over lists of the device's tensors, as one program.

torch's own makes of a step ten operators on lists, each a program. Here are its operators in its order, so the values
are the same up to rounding. All that is not a plain tensor of one floating dtype is left to torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.autograd.graph import increment_version

from ..arrays import partitioned
from ..arrays.observers import OBSERVERS
from ..tensor.tensor import Tensor, array_of
from ..tracing import opaque
from ..xla import malloc
from ..xla.jitted import jitted
from ..xla.x64 import Enabled
from . import in_place

Arrays = Sequence[jax.Array]
_DTYPES = (torch.float32, torch.float64)


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
    targets = [t for tensors in (params, *states) for t in tensors]
    if not _is_eager() or not all(s.is_cpu for s in steps):
        return False
    if any(type(t) is not Tensor or t.is_inference() for t in (*targets, *grads)):
        return False
    views = in_place.views_apart(targets, [grads])
    if views is None or params[0].dtype not in _DTYPES:
        return False
    given = in_place.may_be_overwritten(views)  # asked while nothing else holds the arrays
    arrays, gradients = [view.read() for view in views], [array_of(g) for g in grads]
    if not _fit(arrays, gradients):
        return False
    times = [step.item() + 1 for step in steps]
    numbers = np.array(
        [1 - lr * weight_decay if decoupled else weight_decay, 1 - beta1, beta2, 1 - beta2, eps]
        + [-(lr / (1 - beta1**time)) for time in times]
        + [(1 - beta2**time) ** 0.5 for time in times]
    )
    run = _program(given, decoupled if weight_decay else None, maximize, amsgrad)
    with Enabled():
        results = run(*[arrays[i : i + len(params)] for i in range(0, len(arrays), len(params))], gradients, numbers)
    increment_version(targets)
    for view, array in zip(views, [a for part in results for a in part], strict=True):
        view.write(array)
    torch._foreach_add_(list(steps), torch.tensor(1.0))  # last: a step that fails counts for nothing
    return True


def _fit(targets: Arrays, grads: Arrays) -> bool:
    """True if arrays have one dtype and device, and the gradients the shapes of the parameters, the first targets."""
    (kind, place), arrays = (targets[0].dtype, targets[0].sharding), (*targets, *grads)
    if any(isinstance(a, jax.core.Tracer) or a.dtype != kind or a.sharding != place for a in arrays):
        return False
    return all(p.shape == g.shape for p, g in zip(targets, grads, strict=False))


def _is_eager() -> bool:
    """True if nothing records, traces, watches or differentiates operators, and no tensor is over a mesh."""
    return not (
        OBSERVERS
        or partitioned.MET
        or torch.is_grad_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_tracing()
    )


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
