"""Small tensors that a forward graph saves for the backward graph: one array for each dtype.

To make a tensor of an array, save it for the backward pass and free it costs JAX, torch and autograd four microseconds,
whatever its size, and the steps of a recurrent net save hundreds. The backward program gets the places of the parts as
operands: with a constant in each, no two of its kernels would be the same, and XLA compiles what is the same once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import torch

from jaten_ops.arrays.strides import order_of
from jaten_ops.kernels import joining
from jaten_ops.ops.user_ops import op

from .nodes import fake_value, is_of_meta, outputs_of
from .saved_views import memory_of, set_outputs
from .small_gradients import LARGEST

_FEWEST = 3
"""The fewest that share an array."""
_DTYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int32, torch.int64}

op("jaten_nn::joined(Tensor[] tensors) -> Tensor")(joining.joined)
op("jaten_nn::part(Tensor joined, int start, int[] shape) -> Tensor")(joining.part)


def join_saved(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
    """Changes both parts of a joint graph: small tensors that the first saves for the second are joined.

    Not if sizes may change, as executables for several sizes are of operators of ATen's, nor with several devices,
    where what lies over a mesh in parts would meet on each.

    Args:
        forward, backward: the parts, of ATen's operators.
        results: the number of outputs of the forward graph that are not saved.
    """
    if len(jax.local_devices()) > 1 or any(map(_is_open, forward.graph.find_nodes(op="placeholder"))):
        return
    output = forward.graph.output_node()
    outputs = outputs_of(forward.graph)
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    # images lie with their channels last, if that takes less time
    images = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    found = _groups(outputs, results, most_dims=2 if images else 8)
    groups = [g for g in found if len(g) >= _FEWEST and all(n.name in inputs for n in g)]
    for nodes in groups:
        with forward.graph.inserting_before(output):
            as_stored = [_permuted(n, _order(n)) for n in nodes]
            joined = forward.graph.call_function(torch.ops.jaten_nn.joined.default, (as_stored,))
        joined.meta["val"] = fake_value(nodes[0]).new_empty((sum(fake_value(n).numel() for n in nodes),))
        outputs[outputs.index(nodes[0])] = joined
        _part(backward.graph, joined, [inputs[n.name] for n in nodes])
    if groups:
        set_outputs(forward, outputs, results, {node for nodes in groups for node in nodes[1:]})
        backward.recompile()


def _part(graph: torch.fx.Graph, joined: torch.fx.Node, inputs: Sequence[torch.fx.Node]) -> None:
    """Replaces inputs of a backward graph by parts of one."""
    with graph.inserting_before(inputs[0]):
        whole = graph.placeholder(joined.name)
    whole.meta["val"] = joined.meta["val"]
    after, start = graph.find_nodes(op="placeholder")[-1].next, 0
    for node in inputs:
        value, order = fake_value(node), _order(node)
        shape = [value.shape[d] for d in order or range(value.dim())]
        with graph.inserting_before(after):
            part = graph.call_function(torch.ops.jaten_nn.part.default, (whole, start, shape))
            part.meta["val"] = value.new_empty(shape)
            part = _permuted(part, None if order is None else [order.index(d) for d in range(len(order))])
        part.meta |= node.meta
        node.replace_all_uses_with(part)
        graph.erase_node(node)
        start += value.numel()


def _permuted(node: torch.fx.Node, dims: Sequence[int] | None) -> torch.fx.Node:
    """A node with its dimensions in another order, or itself."""
    if dims is None:
        return node
    made = node.graph.call_function(torch.ops.aten.permute.default, (node, list(dims)))
    made.meta["val"] = fake_value(node).permute(dims)
    return made


def _groups(outputs: Sequence[Any], results: int, most_dims: int) -> list[list[torch.fx.Node]]:
    """The small tensors that are saved, those of a dtype together.

    Not those that the program's user has: autograd tells when these are written to before the backward pass.
    """
    known = {memory_of(node) for node in outputs[:results] if isinstance(node, torch.fx.Node)}
    found: dict[Any, list[torch.fx.Node]] = defaultdict(list)
    for node in outputs[results:]:
        value, owner = fake_value(node), memory_of(node)
        is_own = isinstance(value, torch.Tensor) and owner.op == "call_function" and owner not in known
        if is_own and value.dim() <= most_dims and _is_small(node):
            found[value.dtype, value.device].append(node)
    return list(found.values())


def _is_open(node: torch.fx.Node) -> bool:
    """True for a size that may change, and for a tensor with such a size."""
    value = fake_value(node)
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(n, torch.SymInt) for n in sizes)


def _order(node: torch.fx.Node) -> tuple[int, ...] | None:
    value = fake_value(node)
    return order_of(tuple(value.shape), value.stride())


def _is_small(node: torch.fx.Node) -> bool:
    value = fake_value(node)
    if value.dtype not in _DTYPES or is_of_meta(value) or not all(type(n) is int for n in value.shape):
        return False
    is_saved_by_autograd = not node.meta.get("saved_tensor_with_no_vc_check", False)
    if not is_saved_by_autograd or not 0 < value.numel() * value.itemsize <= LARGEST:
        return False
    order = _order(node)
    return (value if order is None else value.permute(order)).is_contiguous()
