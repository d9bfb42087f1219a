"""The operator of a graph from which a value that is not finite comes, by which errors name the line of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils._pytree import tree_leaves

from .lowering import Lowered
from .nodes import module_path, overload_of, source_line

_KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {"nan": ("a nan", jnp.isnan), "inf": ("an infinity", jnp.isinf)}


def place_of_nan(lowered: Lowered, values: Mapping[torch.fx.Node, Any], seed: Any, kind: str) -> str:
    """Words for the operator from which a NaN in a graph's results comes; empty if there is none in them.

    The graph is run operator by operator. A NaN that no result depends on is none.

    Args:
        lowered: the graph.
        values: for each placeholder its array, or int for a size.
        seed: for random operators.
        kind: "nan", or "inf" for infinities.
    """
    words, is_one = _KINDS[kind]
    found: set[torch.fx.Node] = set()

    def check(node: torch.fx.Node, result: Any) -> None:
        for array in tree_leaves(result):
            is_float = isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jnp.inexact)
            if is_float and bool(is_one(array).any()):
                found.add(node)

    with jax.debug_nans(False), jax.debug_infs(False):
        for node, value in values.items():
            check(node, value)
        lowered(values, seed, [], seen=check)
    reached = [n for n in lowered.outputs if n in found]
    if not reached:
        return ""
    node = reached[0]
    while before := [n for n in node.all_input_nodes if n in found]:
        node = before[0]
    if node.op == "placeholder":
        return f"{words} comes in by an input, {node.name}"
    path = module_path(node)
    of_module = f" of the module {path}" if path else ""
    return f"{words} comes from {overload_of(node.target)}{of_module}{source_line(node)}"
