"""Whole rows by their numbers, where a program repeats the numbers for each element, as graph networks do.

`scatter_add` of an expanded index adds element by element. The same as `index_add` is ten times faster; ATen's kernel
looks for such an index, too.
"""

from __future__ import annotations

from typing import Any

import torch

from jaten_ops.lazy import operator_of

from .targets import overload_of


def by_rows(gm: torch.fx.GraphModule, *, backward: bool) -> None:
    """Makes `scatter_add` with such an index `index_add`, and in a backward graph `gather` `index_select`.

    Elsewhere `gather` stays: it has another error for an index out of range.
    """
    for node in list(gm.graph.nodes):
        name = overload_of(node.target) if node.op == "call_function" else None
        if name != "scatter_add" and not (name == "gather" and backward):
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
            target = operator_of("index_add" if name == "scatter_add" else "index_select")
            new = gm.graph.call_function(target, (operand, dim, flat, *source))
        flat.meta, new.meta = index.meta | {"val": numbers.meta["val"].reshape(-1)}, node.meta
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    gm.recompile()


def _shape(node: Any) -> tuple[int, ...] | None:
    """The shape of a value, if it is known."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    known = isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)
    return tuple(value.shape) if known and isinstance(value, torch.Tensor) else None


def _without(shape: tuple[int, ...] | None, dim: int) -> tuple[int, ...]:
    assert shape is not None
    return tuple(n for d, n in enumerate(shape) if d != dim % len(shape))


def _numbers(index: Any, dim: int) -> torch.fx.Node | None:
    """What an index is an expansion of, if that has all its elements along one dimension."""
    if not isinstance(index, torch.fx.Node) or overload_of(index.target) != "expand":
        return None
    numbers = index.args[0]
    long, short = _shape(index), _shape(numbers)
    if long is None or short is None or len(long) != len(short) or not long or not isinstance(numbers, torch.fx.Node):
        return None
    return numbers if short[dim] == long[dim] and set(_without(short, dim)) <= {1} else None
