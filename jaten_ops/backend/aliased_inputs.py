"""Inputs that share memory, or begin later in it: calls that a graph would not serve run operator by operator.

Among plain tensors AOTAutograd finds such inputs, and traces them as views of one base. It treats tensors on the device
as separate: the graph would read the old values from the others, if one of them is written to. And it takes all of
them to begin where their memory does, which matters if `as_strided` names a place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from jaten_ops.arrays.storage_views import overlap
from jaten_ops.tensor.operand_values import shared_view

from .graph_info import GraphInfo
from .nodes import graphs_inside

_log = logging.getLogger(__name__)


def guarded(
    captured: Callable[..., Any], gm: torch.fx.GraphModule, inputs: Sequence[Any], graphs: Sequence[GraphInfo]
) -> Callable[..., Any]:
    """A captured program that first looks at inputs of the device to which it may write, or of which it names places.

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
    if len(on_device) < 2:
        written = []
    placed = _read_at_places(gm, on_device) if on_device else []
    if not written and not placed:
        return captured

    def run(*args: Any) -> Any:
        begins_later = any(args[i].storage_offset() for i in placed)
        if not begins_later and not (written and _sees_another(args, on_device, written)):
            return captured(*args)
        why = "an input begins later in memory, of which places are named" if begins_later else "inputs share memory"
        _log.info("%s: the operators of this call run one by one", why)
        return gm(*args)

    return torch._dynamo.disable(run, reason="it is compiled")


_BY_PLACE = {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
"""Operators that may name a place in memory, and which of their arguments does."""


def _read_at_places(gm: torch.fx.GraphModule, on_device: Sequence[int]) -> Sequence[int]:
    """The inputs of the device in whose memory `as_strided` names a place."""
    if any(_naming_places(inner) for inner in graphs_inside(gm)):
        return on_device  # its operands are not told from others
    memories = {_memory(node.args[0]) for node in _naming_places(gm)}
    inputs = gm.graph.find_nodes(op="placeholder")
    return [i for i in on_device if memories and _memory(inputs[i]) in memories]


def _naming_places(gm: torch.fx.GraphModule) -> list[Any]:
    found = []
    for node in gm.graph.nodes:
        at = _BY_PLACE.get(getattr(node.target, "__name__", str(node.target)).partition(".")[0])
        if at is not None and (node.args[at:] or node.kwargs.get("storage_offset")) not in ((), (None,), None):
            found.append(node)
    return found


def _memory(node: Any) -> int:
    """A number that tells the memory of a node's tensor from others."""
    value = node.meta["example_value"]
    return getattr(value, "_carrier", value).untyped_storage()._cdata  # type: ignore[no-any-return]  # not in its stubs


def _sees_another(args: Sequence[Any], on_device: Iterable[int], written: Iterable[int]) -> bool:
    """True if an input on the device shares memory with another that is written to."""
    if not any(shared_view(args[i]) for i in written):
        return False
    views = {i: view for i in on_device if (view := shared_view(args[i])) is not None}
    if len({id(view.storage.root) for view in views.values()}) == len(views):
        return False
    return any(overlap(views[i], view) for i in written if i in views for j, view in views.items() if i != j)
