"""Results of compiled programs on the device as `jaten_ops.Tensor`s, whatever made them.

AOTAutograd makes one of each output that was one in the capture. What a program makes on the device of nothing, or of
a tensor elsewhere, is a plain tensor there: at run time the carrier inside, which no program is to see.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from jaten_ops.tensor.operand_values import is_traced
from jaten_ops.tensor.tensor import Tensor

from ..graph_info import GraphInfo
from ..nodes import captured_value


def wrapped_results(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Has Dynamo's graph return tensors of the device as such, and their gradients; notes if there were any others."""
    output = gm.graph.output_node()
    plain = [node for node in output.all_input_nodes if _is_plain(captured_value(node))]
    with gm.graph.inserting_before(output):
        for node in plain:
            made = gm.graph.call_function(_returned, (node,))
            made.meta = dict(node.meta)
            output.replace_input_with(node, made)
    inputs = gm.graph.find_nodes(op="placeholder")
    asked = [node for node in inputs if isinstance(captured_value(node), Tensor) and captured_value(node).requires_grad]
    if not any(map(_makes_plain_gradients, map(captured_value, gm.graph.nodes))):
        asked = []
    with gm.graph.inserting_after(inputs[-1] if inputs else None):
        for node in asked:
            gm.graph.call_function(_watch, (node,))
    if plain or asked:
        gm.recompile()
    return info.having(is_wrapped=bool(plain or asked))


def _makes_plain_gradients(value: Any) -> bool:
    """True for a tensor elsewhere, and for one of open size: of others even gradients of zeros leave as `Tensor`s."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.device.type != "jax" or any(type(n) is not int for n in value.shape)


def _watch(tensor: torch.Tensor) -> None:
    """Makes a tensor's gradient a `Tensor`: a copy to another device gives back a plain one."""
    if tensor.requires_grad and is_traced(tensor):  # not where the graph itself is run
        tensor.register_hook(_returned)


def _is_plain(value: Any) -> bool:
    """True for a tensor on the device that is not of a subclass with tensors inside, as `Tensor` and DTensor are."""
    return isinstance(value, torch.Tensor) and value.device.type == "jax" and not is_traceable_wrapper_subclass(value)


def _returned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to return for a plain one; called while AOTAutograd traces."""
    if not _is_plain(tensor):
        return tensor
    return _Returned.apply(tensor) if tensor.requires_grad and torch.is_grad_enabled() else Tensor(tensor)


class _Returned(torch.autograd.Function):
    """A plain tensor as a `Tensor`. Its gradient is one, too, and the plain tensor's gradient is the inner tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return Tensor(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad._carrier if isinstance(grad, Tensor) else grad
