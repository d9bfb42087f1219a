"""Which inputs are parameters and buffers, which keep their memory from call to call."""

from __future__ import annotations

import torch

from ..graph_info import GraphInfo


def static_inputs(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds these by AOTAutograd's account of the forward graph.

    The backward graph names what it got from the forward as the forward does, so they are found there by name. A token,
    by which AOTAutograd orders effects, counts as an input of a graph for inference, but is none any more.
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
