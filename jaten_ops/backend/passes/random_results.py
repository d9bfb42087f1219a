"""Results of random operators, which are saved for the backward: drawn again, they would be others."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import CheckpointPolicy

from jaten_ops import registry

from ..graph_info import GraphInfo
from ..nodes import overload_of


def random_results(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Tells torch's partitioner so, in its own terms, of a graph of forward and backward."""
    for node in gm.graph.nodes:
        spec = registry.SPECS.get(overload_of(node.target) or "")
        if spec is not None and spec.random:
            node.meta.pop("recompute", None)  # activation checkpointing wants that
            for result in [node] if len(spec.returns) == 1 else node.users:  # several results are saved separately
                result.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return info
