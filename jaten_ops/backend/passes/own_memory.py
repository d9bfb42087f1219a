"""Operators that look at how a tensor lies in memory, of arrays that are all of that memory, row by row.

An array has no strides. `as_strided` becomes one of what owns the memory, and writes by it, `as_strided_scatter`, and
`resize` ones of row-major tensors.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from jaten_ops.arrays.strides import order_of
from jaten_ops.arrays.view_ops import is_view, reinterprets
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.meta import aten_overload
from jaten_ops.ops import memory_layout
from jaten_ops.schema import KEEPS_MEMORY_ORDER, READS_MEMORY

from ..graph_info import GraphInfo
from ..nodes import overload_of, source_line


def own_memory(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Makes these operators such, in ATen's terms; done again, it changes nothing more.

    Raises:
        UnsupportedInputError: the memory has elements that are in no array, or they lie in no order.
    """
    for node in list(gm.graph.nodes):
        overload = overload_of(node.target)
        if overload in READS_MEMORY:
            _read_of_owner(node, aten_overload(overload))
        elif overload == "as_strided_scatter":
            _write_in_memory_order(node)
        elif overload in KEEPS_MEMORY_ORDER:
            _keep_memory_order(node)
    return info


def _write_in_memory_order(node: Any) -> None:
    """Makes a write by `as_strided` one to a row-major array: dimensions are put in the order in which they lie."""
    operand, value = node.args[0], node.args[0].meta["val"]
    if value.is_contiguous():
        return
    order = _order_of_dense(value, node)
    with node.graph.inserting_before(node):
        given = node.graph.call_function(torch.ops.aten.permute.default, (operand, list(order)))
    with node.graph.inserting_after(node):
        result = node.graph.call_function(torch.ops.aten.permute.default, (node, memory_layout.inverse_order(order)))
    given.meta["val"], result.meta = value.permute(order), dict(node.meta)
    node.replace_all_uses_with(result, lambda user: user is not result)
    node.args = (given, *node.args[1:])
    node.meta["val"] = node.meta["val"].permute(order)


def _keep_memory_order(node: Any) -> None:
    """Makes a `resize` one of row-major arrays: dimensions are put in the order in which they lie, and back."""
    operand, value = node.args[0].meta["val"], node.meta["val"]
    if operand.device.type == "jax":
        return  # it is row-major, and the device has put the dimensions in order
    size = node.args[1].meta["val"] if isinstance(node.args[1], torch.fx.Node) else node.args[1]
    if not all(type(n) is int for n in (*operand.shape, *value.shape)):
        raise UnsupportedInputError("a resize", f"one of sizes that change{source_line(node)}", "a reshape or a slice")
    plain = torch.fx.map_arg(size, lambda n: int(n.meta["val"])) if isinstance(size, list | tuple) else size
    before = memory_layout.by_strides(
        torch.empty_like(torch.empty_strided(operand.shape, operand.stride(), device="meta"))
    )
    after = memory_layout.by_strides(memory_layout.target_of_resize(operand, plain, node.kwargs.get("memory_format")))
    in_place = [list(order) == list(range(len(order))) for order in (before, after)]
    if all(in_place) and node.target is torch.ops.aten.resize.default and not node.kwargs:
        return  # it is one of a row-major array
    with node.graph.inserting_before(node):
        given = node.graph.call_function(torch.ops.aten.permute.default, (node.args[0], before))
        given.meta["val"] = operand.permute(before)
    with node.graph.inserting_after(node):
        result = node.graph.call_function(torch.ops.aten.permute.default, (node, memory_layout.inverse_order(after)))
        result.meta = dict(node.meta)
    node.replace_all_uses_with(result, lambda user: user is not result)
    node.target = torch.ops.aten.resize.default
    node.args, node.kwargs = (given, [value.shape[d] for d in after]), {}
    node.meta["val"] = value.permute(after)


def _read_of_owner(node: Any, target: Any) -> None:
    """Has a node read the memory of what owns that, in the order in which it lies; its offset is written out."""
    owner = _owner_of_memory(node.args[0])
    offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    if offset is None:
        offset = node.args[0].meta["val"].storage_offset()
    value = owner.meta["val"]
    if not value.is_contiguous():
        order = _order_of_dense(value, node)
        with node.graph.inserting_before(node):
            owner = node.graph.call_function(torch.ops.aten.permute.default, (owner, list(order)))
        owner.meta["val"] = value.permute(order)
    size, stride = (node.args[n] if len(node.args) > n else node.kwargs[k] for n, k in ((1, "size"), (2, "stride")))
    node.target, node.args, node.kwargs = target, (owner, size, stride, offset), {}


def _order_of_dense(value: torch.Tensor, node: Any) -> tuple[int, ...]:
    """The order in which the dimensions of a dense tensor lie that is not row-major; others are refused."""
    geometry = (*value.shape, *value.stride())
    order = order_of(tuple(value.shape), value.stride()) if all(isinstance(n, int) for n in geometry) else None
    if order is None:
        got = f"strides {tuple(value.stride())} in as_strided{source_line(node)}"
        raise UnsupportedInputError("tensor", got, "a contiguous one; call .contiguous() before")
    return order


def _owner_of_memory(operand: Any) -> Any:
    """The node whose memory a node is a view of, with its elements as that has them; itself if it is of none."""
    made_by = operand.args[0] if operand.target is operator.getitem else operand
    overload = overload_of(made_by.target)
    aten = None if overload is None else aten_overload(overload)
    if aten is None or not is_view(aten):
        return operand
    owner = _owner_of_memory(made_by.args[0])
    if not reinterprets(aten):
        return owner
    return operand if owner is made_by.args[0] else _reinterpreted(owner, made_by, aten)


def _reinterpreted(owner: Any, view: Any, aten: Any) -> Any:
    """All elements of a node as a view has its own: conjugated, or of another type."""
    try:
        value = aten(owner.meta["val"], *view.args[1:])
    except RuntimeError as error:  # of its sizes
        got = f"a part of what {aten.name().removeprefix('aten::')} takes{source_line(view)}"
        raise UnsupportedInputError("the operand of as_strided", got, "all of it; call .clone() before") from error
    with view.graph.inserting_before(view):
        whole = view.graph.call_function(aten, (owner, *view.args[1:]))
    whole.meta["val"] = value
    return whole
