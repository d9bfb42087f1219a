"""Programs that give a tensor other memory, as `x.data = y` does."""

from __future__ import annotations

import torch

from ..graph_info import GraphInfo

_CALLS = ("set_", "shallow_copy_data_")  # the second since torch 2.15


def replaced_memory(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Looks whether Dynamo's graph does: AOTAutograd is to leave the writes in its graph then (see `input_writes`)."""
    calls = (node for node in gm.graph.nodes if node.op == "call_function")
    return info.having(replaces_memory=any(getattr(node.target, "__name__", None) in _CALLS for node in calls))
