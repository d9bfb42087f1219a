"""Inputs that share memory: a call that writes to one of them runs operator by operator.

Among plain tensors AOTAutograd finds such inputs, and traces them as views of one base. It treats tensors on the device
as separate: the graph would read the old values from the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from jaten_ops.arrays.storage_views import overlap
from jaten_ops.tensor.operand_values import shared_view

from .graph_info import GraphInfo

_log = logging.getLogger(__name__)


def guarded(
    captured: Callable[..., Any], gm: torch.fx.GraphModule, inputs: Sequence[Any], graphs: Sequence[GraphInfo]
) -> Callable[..., Any]:
    """A captured program that, if it may write to inputs of the device, looks at those of each call first.

    Args:
        captured: the program.
        gm: Dynamo's graph of it.
        inputs: what it was captured for.
        graphs: what is known of its graphs, but for backward ones.
    """
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    on_device = [i for i in tensors if inputs[i].device.type == "jax"]
    written = on_device
    lifted = [*gm.parameters(), *gm.buffers()]  # they would come before the inputs
    told = [info.written for info in graphs]
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
    """True if an input on the device shares memory with another that is written to."""
    if not any(shared_view(args[i]) for i in written):
        return False
    views = {i: view for i in on_device if (view := shared_view(args[i])) is not None}
    if len({id(view.storage.root) for view in views.values()}) == len(views):
        return False
    return any(overlap(views[i], view) for i in written if i in views for j, view in views.items() if i != j)
