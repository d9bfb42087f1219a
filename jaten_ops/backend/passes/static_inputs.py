"""The inputs that are parameters and buffers, which keep their memory from call to call."""

from __future__ import annotations

import torch

from ..graph_info import GraphInfo


def static_inputs(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds these by AOTAutograd's account of the forward graph.

    In the backward graph they have the same names as in the forward graph. A token, by which AOTAutograd orders
    effects, counts as an input of a graph for inference, but has been removed.
    """
    if info.metadata is None:
        return info
    static = info.metadata.static_input_indices
    names = [str(n.target) for n in gm.graph.find_nodes(op="placeholder")]
    if info.is_backward:
        known = info.forward.static_names if info.forward else {f"primals_{i + 1}" for i in static}
    elif names and names[0].startswith("arg"):
        known = {f"arg{i}_1" for i in static}
    else:
        known = {names[i] for i in static if i < len(names)}
    found = frozenset(i for i, name in enumerate(names) if name in known)
    return info.having(static_inputs=found, static_names=frozenset(known))
