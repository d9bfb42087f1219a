"""Conjugates of Python's numbers, which gradients have, and whose results are numbers, too."""

from __future__ import annotations

import torch

from ..graph_info import GraphInfo


def conjugate_numbers(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Puts their values in their places."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten._conj.default):
        value = node.args[0]
        if isinstance(value, int | float | complex):
            conjugate = {node: value.conjugate()}
            for user in list(node.users):
                user.args, user.kwargs = torch.fx.map_arg((user.args, user.kwargs), lambda n, c=conjugate: c.get(n, n))  # type: ignore[misc]  # what it gives need not be a node
            gm.graph.erase_node(node)
    return info
