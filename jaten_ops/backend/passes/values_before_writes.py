"""Values that a program reads of an input that may be written to: saved for the backward, not read again.

The partitioner may save the input instead, whose memory has the new value by then: torch's own backends give wrong
gradients, and here torch's check of versions would raise an error where the same program without a compiler works.
Inputs that the program itself writes to are known. Others may be written to before the backward runs, as the memory of
a network over time: if they have no gradient, rows of them that are gathered are saved, as autograd would keep them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch.utils.checkpoint import CheckpointPolicy

from jaten_ops.arrays.view_ops import is_view

from ..graph_info import GraphInfo
from ..nodes import inputs_written_to, whole_description

_aten = torch.ops.aten
_COPY = _aten.copy_.default
_GATHERS = frozenset({_aten.index.Tensor, _aten.index_select.default, _aten.gather.default, _aten.take.default})


def values_before_writes(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Marks what a joint graph computes of such inputs, and of their views, for the partitioner."""
    graph = gm.graph
    given = [whole_description(d) for d in graph.output_node().meta.get("desc") or []]
    differentiable = {getattr(d, "grad_of", None) for d in given}
    placeholders = [(n, whole_description(n.meta.get("desc"))) for n in graph.find_nodes(op="placeholder")]
    _save_values_of(graph, inputs_written_to(graph), _operands)
    others = {n for n, d in placeholders if d is not None and d not in differentiable and not hasattr(d, "output")}
    _save_values_of(graph, others, _source)  # gradients, which are of outputs, come later
    return info


def _save_values_of(
    graph: torch.fx.Graph, inputs: set[torch.fx.Node], read_by: Callable[[torch.fx.Node], list[torch.fx.Node]]
) -> None:
    """Marks what is computed of some inputs, or of views of them, if `read_by` says that a node reads them."""
    memory = {*inputs}
    for node in graph.nodes if memory else ():
        if node.op != "call_function" or memory.isdisjoint(node.all_input_nodes):
            continue
        if _is_in_memory_of_operand(node):
            memory.add(node)
        elif not memory.isdisjoint(read_by(node)):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [] if node.target is _COPY else node.all_input_nodes


def _source(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The node whose rows or elements are gathered."""
    return node.all_input_nodes[:1] if node.target in _GATHERS else []


def _is_in_memory_of_operand(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or (isinstance(node.target, torch._ops.OpOverload) and is_view(node.target))
