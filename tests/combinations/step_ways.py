"""Programs as losses of training steps, compiled whole, each beside the loop that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import jaten_ops

from .programs import Program
from .uses import loss_of

Make = Callable[[Sequence[Tensor]], torch.optim.Optimizer]
STEPS = 4
EXCLUDED = frozenset({"integers", "reads values", "writes inputs"})

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=p[0].device.type == "jax"),
}

SURROUNDINGS = ("a loop", "gradients add up", "clipped", "schedule", "average")


def applies_to(program: Program) -> bool:
    return not EXCLUDED & program.traits


def _train(program: Callable[..., Any], args: Sequence[Tensor], make: Make, how: str, compile_it: bool) -> Any:
    """Losses, and the parameters, their gradients and the average after some steps."""
    parameters = [a.requires_grad_() for a in args if a.is_floating_point()]
    optimizer = make(parameters)
    average = [p.detach().clone() for p in parameters]

    def step(last: bool) -> Tensor:
        loss = loss_of(program(*args))
        loss.backward()
        if how == "clipped":
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        if last:
            optimizer.step()
            optimizer.zero_grad()
        if how == "average":
            with torch.no_grad():
                torch._foreach_lerp_(average, parameters, 0.1)
        return loss.detach()

    run = jaten_ops.compile_step(step, optimizer, *average) if compile_it else step
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if how == "schedule" else None
    losses = []
    for n in range(STEPS):
        losses.append(run(how != "gradients add up" or n % 2 == 1))
        if scheduler is not None:
            scheduler.step()
    return losses, parameters, [p.grad for p in parameters], average


def run(program: Program, optimizer: str, how: str, *, compiled: bool) -> Any:
    """The results of compiled steps on the device, or torch's on the CPU.

    Optimizers keep their counts in the default dtype, by which they correct: it is float64 here, as the rest is.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        args = [a.to("jax") if compiled else a for a in program.make_inputs()]
        return _train(program.fn if compiled else program.plain, args, OPTIMIZERS[optimizer], how, compiled)
    finally:
        torch.set_default_dtype(before)
