"""Higher-order operators that cannot be run, refused with the line of the program before the graph is changed."""

from __future__ import annotations

from typing import Any

import torch

from jaten_ops.errors import UnsupportedInputError

from ..graph_info import GraphInfo
from ..nodes import is_higher_order, source_line
from ..subgraphs import BY_NAME
from .third_party_calls import is_printed, is_unknown, writes

_STEP_BY_STEP = frozenset({"while_loop_stack_output"})  # their results have as many rows as they run steps
_DROPPED = frozenset({"with_effects"})
_PRINTS = frozenset({"print"})


def _with_effects(node: torch.fx.Node) -> Any:
    """The higher-order operator that a node calls, perhaps wrapped for the order of effects."""
    inside = node.args[1] if getattr(node.target, "__name__", "") in _DROPPED else None
    return inside if isinstance(inside, torch._ops.HigherOrderOperator) else node.target


def supported_operators(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Looks for higher-order operators that cannot be run.

    Raises:
        UnsupportedInputError: there is one.
    """
    known = BY_NAME.keys() | _STEP_BY_STEP | _DROPPED | _PRINTS
    for node in filter(is_higher_order, gm.graph.nodes):
        target = _with_effects(node)
        name = getattr(target, "__name__", str(target))
        if is_unknown(node) or is_printed(node):
            continue
        if writes(node.target):
            got = f"a call that writes to its arguments{source_line(node)}"
            raise UnsupportedInputError(str(node.args[0]), got, "one that returns new values; copy_ these after it")
        if name not in known:
            expected = f"one of {', '.join(sorted(known))}; keep it outside, with torch.compiler.disable"
            raise UnsupportedInputError("higher-order operator", f"{name}{source_line(node)}", expected)
    return info
