"""Rows that a program selects, gathered again in the backward graph instead of saved.

Of the rows of a graph network's nodes there is one for each edge. The partitioner saves them, since it only knows how
cheap `x[index]` is; so a program stores what it could gather and scatter in stretches, and keeps it until the backward.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from ..graph_info import GraphInfo

_MORE = 2  # times as many elements are selected as there are: to save what they are of takes less memory


def recompute_gathers(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Marks `index_select` of more elements than there are, in a joint graph, for the partitioner."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.index_select.default):
        if _elements(node) >= _MORE * _elements(node.args[0]):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
    return info


def _elements(node: torch.fx.Node) -> float:
    return math.prod(map(_hint, node.meta["val"].shape))


def _hint(size: Any) -> float:
    """A size as it is, or as it was in the trace; for one that depends on values the choice makes no difference."""
    return size if isinstance(size, int) else size.node.hint or 0
