"""New memory, filled as torch's deterministic algorithms do it."""

from __future__ import annotations

import torch

from jaten_ops.arrays import uninitialized_values
from jaten_ops.ops.namespace import operator_of

from ..graph_info import GraphInfo
from ..nodes import overload_of


def filled_memory(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Puts into new memory what torch does, if that is switched on."""
    if uninitialized_values.is_filled():
        for node in list(gm.graph.nodes):
            if overload_of(node.target) in uninitialized_values.OVERLOADS:
                _fill(gm.graph, node)
    return info


def _fill(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    with graph.inserting_after(node):
        filled = graph.call_function(
            operator_of("fill.Scalar"), (node, uninitialized_values.value_of(node.meta["val"].dtype))
        )
    filled.meta = dict(node.meta)
    node.replace_all_uses_with(filled, lambda user: user is not filled)
