"""Values that a program computes of an input, and then writes to that: saved for the backward, not computed again.

The partitioner may save the input instead, whose memory has the new value by then: torch's own backends give wrong
gradients, and here torch's check of versions would raise an error where the same program without a compiler works.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from ..graph_info import GraphInfo
from ..nodes import whole_description

_COPY = torch.ops.aten.copy_.default


def values_before_writes(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Marks what a joint graph computes of such inputs, and of their views, for the partitioner."""
    graph = gm.graph
    given: list[Any] = graph.output_node().meta.get("desc") or []
    written = {w for d in given if (w := getattr(whole_description(d), "mutated_input", None)) is not None}
    memory = {n for n in graph.find_nodes(op="placeholder") if whole_description(n.meta.get("desc")) in written}
    memory |= {n.args[0] for n in graph.find_nodes(op="call_function", target=_COPY)}
    for node in graph.nodes if memory else ():
        if node.op != "call_function" or node.target is _COPY or memory.isdisjoint(node.all_input_nodes):
            continue
        if _is_view(node):
            memory.add(node)
        else:
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    return info


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)
