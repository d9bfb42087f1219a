"""Tokens among the inputs of a graph, by which AOTAutograd orders the effects of branches and loops."""

from __future__ import annotations

import torch

from ..graph_info import GraphInfo


def input_tokens(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Takes out those that are left: nothing is done with them, and AOTAutograd hands none over and takes none back.

    They come first.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    count = len(placeholders) - len(info.inputs)
    if count <= 0 or any(node.users for node in placeholders[:count]):
        return info
    output = gm.graph.output_node()
    results: tuple[torch.fx.Node, ...] = tuple(output.args[0])  # type: ignore[arg-type]  # a backend's graph has a tuple
    output.args = (results[count:],)
    for node in {*placeholders[:count], *results[:count]}:
        if isinstance(node, torch.fx.Node) and not node.users:
            gm.graph.erase_node(node)
    return info
