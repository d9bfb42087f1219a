"""Numbers that come out of loops and branches, as tensors that are read where they are used.

Then only these reads bind symbols, and a loop that carries a number is part of an executable as others are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_symbols

from ..graph_info import GraphInfo
from ..subgraphs import RULES


def loop_numbers(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Has loops and branches return tensors in the place of numbers."""
    for node in [n for n in gm.graph.nodes if n.target in RULES]:
        found = node.meta.get("val")
        each = list(found) if isinstance(found, list | tuple) else [found]
        tensors = [v for v in each if isinstance(v, torch.Tensor)]
        numbers = {symbol for v in each if isinstance(v, torch.SymInt) for symbol in free_symbols(v)}
        if not numbers or not tensors or any(free_symbols([*t.shape, *t.stride()]) & numbers for t in tensors):
            continue
        for item in [u for u in node.users if isinstance(u.meta.get("val"), torch.SymInt)]:
            _read(gm.graph, item, tensors[0])
        node.meta.pop("unbacked_bindings", None)
    return info


def _read(graph: torch.fx.Graph, item: torch.fx.Node, like: Any) -> None:
    """Makes the number of a node a tensor, and gives its users the value read from it."""
    users, number = list(item.users), item.meta["val"]
    with like.fake_mode:
        item.meta = item.meta | {"val": torch.empty((), dtype=torch.int64, device=like.device)}
    item.meta.pop("unbacked_bindings", None)
    if users:
        with graph.inserting_after(item):
            read = graph.call_function(torch.ops.aten._local_scalar_dense.default, (item,))
        read.meta["val"] = number
        for user in users:
            user.replace_input_with(item, read)
