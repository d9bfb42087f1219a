"""Scatters of whole rows, where a program expands the row numbers to all elements, as graph networks do.

`scatter_add` and `scatter_reduce` with an expanded index go element by element. `index_add` and `index_reduce` are ten
times faster; ATen's kernels look for such an index, too.
"""

from __future__ import annotations

from typing import Any

import torch

from jaten_ops.dispatch.scattered_rows import row_operator
from jaten_ops.ops.namespace import operator_of

from ..graph_info import GraphInfo
from ..nodes import overload_of


def expanded_index_scatters(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Replaces scatters with such an index by scatters of rows, and, in a backward graph, `gather` by `index_select`.

    Elsewhere `gather` stays, since its error for an index out of range differs.
    """
    for node in list(gm.graph.nodes):
        name = overload_of(node.target) if node.op == "call_function" else None
        target = _target(node, name, info.is_backward)
        if target is None:
            continue
        operand, dim, index, *source = node.args[:4]
        shapes = [_shape(x) for x in (operand, index, *source)]
        numbers = _numbers(index, dim)
        if numbers is None or None in shapes or (source and shapes[2] != shapes[1]):
            continue
        if _without(shapes[0], dim) != _without(shapes[1], dim):
            continue
        with gm.graph.inserting_before(node):
            flat = gm.graph.call_function(operator_of("view"), (numbers, [-1]))
            more = (node.args[4:], node.kwargs) if target == "index_reduce" else ((), {})
            new = gm.graph.call_function(operator_of(target), (operand, dim, flat, *source, *more[0]), more[1])
        flat.meta, new.meta = index.meta | {"val": numbers.meta["val"].reshape(-1)}, node.meta
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return info


def _target(node: torch.fx.Node, name: str | None, backward: bool) -> str | None:
    """The operator by rows, if there is one."""
    if name == "scatter_reduce.two":
        kind = node.args[4] if len(node.args) > 4 else node.kwargs.get("reduce")
        return row_operator(kind, bool(node.kwargs.get("include_self", True)), _is_float(node.args[0]))
    return "index_add" if name == "scatter_add" else "index_select" if name == "gather" and backward else None


def _is_float(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _shape(node: Any) -> tuple[int, ...] | None:
    """The shape of a value, if it is known."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    known = isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)
    return tuple(value.shape) if known and isinstance(value, torch.Tensor) else None


def _without(shape: tuple[int, ...] | None, dim: int) -> tuple[int, ...]:
    assert shape is not None
    return tuple(n for d, n in enumerate(shape) if d != dim % len(shape))


def _numbers(index: Any, dim: int) -> torch.fx.Node | None:
    """The tensor of which an index is an expansion, if all of its elements are along one dimension."""
    if not isinstance(index, torch.fx.Node) or overload_of(index.target) != "expand":
        return None
    numbers = index.args[0]
    long, short = _shape(index), _shape(numbers)
    if long is None or short is None or len(long) != len(short) or not long or not isinstance(numbers, torch.fx.Node):
        return None
    return numbers if short[dim] == long[dim] and set(_without(short, dim)) <= {1} else None
