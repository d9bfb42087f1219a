"""Views of inputs that a forward graph saves for the backward graph: the inputs are saved, and the views made there.

An executable would return a copy, of a weight at each call, and autograd would not notice that the input is written to
before the backward pass.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch

from jaten_ops.arrays.view_ops import is_view

from .nodes import inputs_written_to, outputs_of

# what is made with others, and what reads memory, of which a graph knows another order than the input's
_NOT_REPEATED = (operator.getitem, torch.ops.aten.as_strided.default)


def save_inputs(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
    """Changes both parts of a joint graph, so that the first saves inputs in place of their views.

    Not of inputs that the program writes to: the backward pass needs the values from before.

    Args:
        forward, backward: the parts, of ATen's operators.
        results: the number of outputs of the forward graph that are not saved.
    """
    outputs = outputs_of(forward.graph)
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    written, left_out = inputs_written_to(forward.graph), set[torch.fx.Node]()
    for i, node in enumerate(outputs[results:], results):
        owner = memory_of(node) if isinstance(node, torch.fx.Node) else node
        made = None if owner is node or owner in written or node.name not in inputs else _made_of(node, owner)
        if made is None:
            continue
        if owner in outputs[results:]:
            left_out.add(node)
        else:
            outputs[i] = owner
            with backward.graph.inserting_before(inputs[node.name]):
                inputs[owner.name] = backward.graph.placeholder(owner.name)
            inputs[owner.name].meta = owner.meta
        _make_views(backward.graph, made, inputs[owner.name], inputs.pop(node.name))
    if left_out or outputs != outputs_of(forward.graph):
        set_outputs(forward, outputs, results, left_out)
        backward.recompile()


def set_outputs(
    forward: torch.fx.GraphModule, outputs: list[Any], results: int, left_out: Collection[torch.fx.Node]
) -> None:
    """Gives a forward graph other outputs, without some of those that are saved, and recompiles it."""
    output = forward.graph.output_node()
    kept = [i for i, node in enumerate(outputs) if i < results or node not in left_out]
    if (described := output.meta.get("desc")) is not None:
        output.meta["desc"] = [described[i] for i in kept]
    found = [outputs[i] for i in kept]
    output.args = (tuple(found) if isinstance(output.args[0], tuple) else found,)
    forward.recompile()


def memory_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node that makes the memory of a value, of which others may be views."""
    while node.op == "call_function":
        of: Any = node.args[0] if node.args else None
        called: Any = of.target if node.target is operator.getitem else node.target
        if not (isinstance(of, torch.fx.Node) and isinstance(called, torch._ops.OpOverload) and is_view(called)):
            break
        node = of
    return node


def _made_of(node: torch.fx.Node, owner: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The nodes that make a view of an input, in order; None if one of them takes more than a tensor and constants."""
    if owner.op != "placeholder" or node.meta.get("saved_tensor_with_no_vc_check", False):
        return None
    made: list[torch.fx.Node] = []
    while node is not owner:
        if len(node.all_input_nodes) != 1 or node.target in _NOT_REPEATED:
            return None
        made.append(node)
        node = node.all_input_nodes[0]
    return made[::-1]


def _make_views(graph: torch.fx.Graph, made: list[torch.fx.Node], owner: torch.fx.Node, saved: torch.fx.Node) -> None:
    """Has a backward graph make a view of an input instead of taking it."""
    value = owner
    with graph.inserting_before(graph.find_nodes(op="placeholder")[-1].next):
        for node in made:
            call = graph.call_function(node.target, (value, *node.args[1:]), node.kwargs)  # type: ignore[arg-type]  # a call's target is a function
            call.meta = dict(node.meta)
            value = call
    saved.replace_all_uses_with(value)
    graph.erase_node(saved)
