"""Calls with effects without the tokens by which AOTAutograd orders them: executables follow the data."""

from __future__ import annotations

import operator

import torch

from ..graph_info import GraphInfo
from .third_party_calls import is_printed

_TOKENS = (torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)


def ordered_effects(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Replaces `with_effects(token, op, ...)` with calls of the ops."""
    graph = gm.graph
    ordered = [n for n in graph.nodes if n.target is torch.ops.higher_order.with_effects]
    for node in ordered:
        _, op, *args = node.args
        with graph.inserting_before(node):
            call = graph.call_function(op, tuple(args), node.kwargs)
        returns_one = is_printed(call) or len(op._schema.returns) == 1
        call.meta = node.meta | {"val": node.meta["val"][1] if returns_one else node.meta["val"][1:]}
        for item in [u for u in node.users if u.args[1] > 0]:
            if returns_one:
                item.replace_all_uses_with(call)
            else:
                with graph.inserting_before(item):
                    item.replace_all_uses_with(
                        graph.call_function(operator.getitem, (call, item.args[1] - 1)), propagate_meta=True
                    )
    for node in reversed(graph.nodes):
        is_item = node.target is operator.getitem and node.args[0] in ordered
        if is_item or node in ordered or node.target in _TOKENS:
            graph.erase_node(node)
    return info
