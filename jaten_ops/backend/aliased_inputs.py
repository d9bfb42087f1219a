"""Inputs that lie in the same memory: a call in which one is written that another sees runs operator by operator.

AOTAutograd finds such inputs among plain tensors, and traces them as views of one base. Of a tensor on the device it
takes each to lie by itself: the graph would read from the others what they held before.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from jaten_ops.arrays.storage_views import overlap
from jaten_ops.tensor.operand_values import shared_view

_log = logging.getLogger(__name__)
_told: ContextVar[list[frozenset[int] | None] | None] = ContextVar("told", default=None)


def tell(written: frozenset[int] | None) -> None:
    """Which of its inputs that are tensors the graph writes to that is being captured; None if that is not known."""
    told = _told.get()
    if told is not None:
        told.append(written)


def guarded(capture: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """A capture of graphs whose results, if they may write to inputs of the device, look at each call's first."""

    @functools.wraps(capture)
    def captured(gm: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        return _guard(gm, inputs, lambda: capture(gm, inputs, **options))

    return captured


def _guard(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], capture: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    on_device = [i for i in tensors if inputs[i].device.type == "jax"]
    told: list[frozenset[int] | None] = []
    token = _told.set(told)
    try:
        captured = capture()
    finally:
        _told.reset(token)
    written = on_device
    lifted = [*gm.parameters(), *gm.buffers()]  # they would come before the inputs
    if len(told) == 1 and told[0] is not None and not lifted:
        written = [i for n, i in enumerate(tensors) if n in told[0] and i in on_device]
    if len(on_device) < 2 or not written:
        return captured

    def run(*args: Any) -> Any:
        if not _sees_another(args, on_device, written):
            return captured(*args)
        _log.info("inputs share memory that is written: the operators of this call run one by one")
        return gm(*args)

    return torch._dynamo.disable(run, reason="it is compiled")


def _sees_another(args: Sequence[Any], on_device: Iterable[int], written: Iterable[int]) -> bool:
    """Whether an input of the device sees what is written to another."""
    if not any(shared_view(args[i]) for i in written):
        return False
    views = {i: view for i in on_device if (view := shared_view(args[i])) is not None}
    if len({id(view.storage.root) for view in views.values()}) == len(views):
        return False
    return any(overlap(views[i], view) for i in written if i in views for j, view in views.items() if i != j)
