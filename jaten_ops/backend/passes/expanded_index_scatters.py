"""Scatters of whole rows, where a program expands the row numbers to all elements, as graph networks do.

`scatter_add` and `scatter_reduce` with an expanded index go element by element. `index_add` and `index_reduce` are ten
times faster; ATen's kernels look for such an index, too.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from jaten_ops.dispatch.scattered_rows import row_operator
from jaten_ops.ops.namespace import operator_of

from ..graph_info import GraphInfo
from ..nodes import overload_of


def expanded_index_scatters(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Replaces scatters with such an index by scatters of rows, and, in a backward graph, `gather` by `index_select`.

    Elsewhere `gather` stays, since its error for an index out of range differs. Rows of several batches, each with
    numbers of its own, are scattered as one in a backward graph.
    """
    for node in list(gm.graph.nodes):
        name = overload_of(node.target) if node.op == "call_function" else None
        target = _target(node, name, info.is_backward)
        if target is None:
            continue
        operand, dim, index, *source = node.args[:4]
        shapes = [_shape(x) for x in (operand, index, *source)]
        if name == "scatter_add" and info.is_backward and (batch := _batch_numbers(index, shapes, dim)) is not None:
            _scatter_batches(gm, node, batch, dim)
            continue
        numbers = _numbers(index, dim)
        if numbers is None or None in shapes or (source and shapes[2] != shapes[1]):
            continue
        if _without(shapes[0], dim) != _without(shapes[1], dim):
            continue
        with gm.graph.inserting_before(node):
            flat = gm.graph.call_function(operator_of("view"), (numbers, [-1]))
            more = (node.args[4:], node.kwargs) if target == "index_reduce" else ((), {})
            new = gm.graph.call_function(operator_of(target), (operand, dim, flat, *source, *more[0]), more[1])
        few = numbers.meta["val"]
        flat.meta, new.meta = index.meta | {"val": few.new_empty(few.shape[dim])}, node.meta
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


_Shape = tuple[Any, ...]  # open sizes are torch's expressions: equal ones are equal for all sizes


def _shape(node: Any) -> _Shape | None:
    """The shape of a value, to be compared with others."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    return tuple([n if isinstance(n, int) else n.node.expr for n in value.shape])


def _without(shape: _Shape | None, dim: int) -> _Shape:
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


# In a backward graph most scatters are gradients of a gather, which has checked the index. Another index that is out of
# range is an error here as well, though that of `index_add`.


def _batch_numbers(index: Any, shapes: list[_Shape | None], dim: int) -> torch.fx.Node | None:
    """The tensor of which an index is an expansion, if it has row numbers for each of the same batches."""
    if not isinstance(index, torch.fx.Node) or overload_of(index.target) != "expand" or None in shapes:
        return None
    numbers, (whole, long, source) = index.args[0], shapes
    short = _shape(numbers)
    if whole is None or long is None or short is None or not isinstance(numbers, torch.fx.Node) or source != long:
        return None
    if not all(isinstance(n, int) for n in (*whole, *long)):
        return None
    axis = dim % len(long)
    fits = len(short) == len(long) and short[: axis + 1] == long[: axis + 1] and set(short[axis + 1 :]) == {1}
    return numbers if axis and fits and _without(whole, dim) == _without(long, dim) else None


def _scatter_batches(gm: torch.fx.GraphModule, node: torch.fx.Node, numbers: torch.fx.Node, dim: int) -> None:
    operand, source = node.args[0], node.args[3]
    shape, rows = _shape(operand), _shape(source)
    assert shape is not None and rows is not None and isinstance(operand, torch.fx.Node)
    assert isinstance(source, torch.fx.Node)
    axis = dim % len(shape)
    batches, count = math.prod(shape[:axis]), shape[axis]
    of_numbers = numbers.meta["val"]

    def call(name: str, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.fx.Node:
        made = gm.graph.call_function(operator_of(name), args, kwargs)
        made.meta = node.meta | {"val": value}
        return made

    def of_rows(x: torch.fx.Node, size: int) -> torch.fx.Node:
        to = [batches * size, *shape[axis + 1 :]]
        return call("view", x.meta["val"].new_empty(to), x, to)

    with gm.graph.inserting_before(node):
        flat = call("view", of_numbers.new_empty((batches, rows[axis])), numbers, [batches, rows[axis]])
        end, dtype = batches * count, of_numbers.dtype
        step = of_numbers.new_empty(batches)
        firsts = call("arange.start_step", step, 0, end, count, dtype=dtype, device=of_numbers.device)
        column = call("view", of_numbers.new_empty((batches, 1)), firsts, [batches, 1])
        like = of_numbers.new_empty((batches, rows[axis]))
        is_wrong = like.new_empty(like.shape, dtype=torch.bool)
        below, above = call("lt.Scalar", is_wrong, flat, 0), call("ge.Scalar", is_wrong, flat, count)
        places = call("add.Tensor", like, flat, column)
        # or else it would be a row of another batch
        places = call("masked_fill.Scalar", like, places, call("logical_or", is_wrong, below, above), end)
        places = call("view", of_numbers.new_empty(batches * rows[axis]), places, [-1])
        target = of_rows(operand, count)
        added = call("index_add", target.meta["val"], target, 0, places, of_rows(source, rows[axis]))
        result = call("view", node.meta["val"], added, list(shape))
    node.replace_all_uses_with(result)
    gm.graph.erase_node(node)
