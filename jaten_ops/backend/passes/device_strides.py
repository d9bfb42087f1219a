"""Strides of the results that a program returns on the device, as operators there give them when they are called.

A graph is captured with carriers, all of which are row-major, and ATen's fakes say what ATen's kernels would return. On
the device the result of an operator is row-major; views of it are not, and copies keep the order of their operand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from jaten_ops import registry
from jaten_ops.arrays.strides import row_major
from jaten_ops.arrays.view_ops import is_view, strides_in_format, strides_kept
from jaten_ops.meta import aten_overload
from jaten_ops.tracing import out_of_sight

from ..graph_info import GraphInfo
from ..nodes import fake_value, overload_of

Strides = tuple[int, ...]
# what functionalization makes of writes: the results lie as the first operand, which the program wrote to
_WRITTEN = frozenset({"copy", "select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"})
_Given = dict[torch.fx.Node, Strides | None]


def device_strides(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds them for outputs of known sizes. New values of inputs have none: only their elements are written."""
    if info.is_backward:
        return info
    outputs: Any = gm.graph.output_node().args[0]
    given: _Given = dict(zip(gm.graph.find_nodes(op="placeholder"), info.input_strides, strict=False))
    if given:
        given |= {outputs[n]: info.input_strides[i] for n, i in info.new_values.items()}  # they are in its memory
    found = {}
    for n in range(info.first_result, len(outputs) if info.seen is None else info.seen):
        value = fake_value(outputs[n])
        if isinstance(value, torch.Tensor) and value.device.type == "jax" and _is_known(value):
            strides = _strides_of(outputs[n], given)
            if strides is not None and strides != row_major(tuple(value.shape)):
                found[n] = strides
    return info.having(result_strides=found)


def _is_known(value: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _strides_of(node: torch.fx.Node, given: _Given) -> Strides | None:
    """The strides of a node's tensor; None if they are not known."""
    value = node.meta["val"]
    if node in given or node.op == "placeholder":
        return given.get(node)
    if node.target is operator.getitem:
        made_by, place = node.args
        views = _seen_as(made_by, given) if _is_view(made_by) else None  # type: ignore[arg-type]  # it is a node
        return row_major(tuple(value.shape)) if views is None else views[place].stride()
    if _is_view(node):
        view = _seen_as(node, given)
        return None if view is None else view.stride()
    if overload_of(node.target) in _WRITTEN:
        return _strides_of(node.args[0], given)  # type: ignore[arg-type]  # it is a node
    return _of_copy(node, given) if _keeps_order(node) else row_major(tuple(value.shape))


def _is_view(node: torch.fx.Node) -> bool:
    overload = overload_of(node.target)
    aten = None if overload is None else aten_overload(overload)
    return aten is not None and is_view(aten)


def _keeps_order(node: torch.fx.Node) -> bool:
    """True for `clone`, `zeros_like` and their kin."""
    spec = registry.SPECS.get(overload_of(node.target) or "")
    return spec is not None and spec.takes_tensor and any(a.name == "memory_format" for a in spec.arguments)


def _seen_as(node: torch.fx.Node, given: _Given) -> Any:
    """The views that a view operator returns for an operand with the strides that it has; None if that is not known."""
    operand: Any = node.args[0]
    strides = _strides_of(operand, given) if _is_known(operand.meta["val"]) else None
    if strides is None or len(node.all_input_nodes) > 1:  # a size that depends on values
        return None
    return _on_meta(aten_overload(overload_of(node.target) or ""), operand.meta["val"], strides, node)


def _on_meta(call: Callable[..., Any] | None, like: torch.Tensor, strides: Strides, node: torch.fx.Node) -> Any:
    with out_of_sight():
        operand = torch.empty_strided(like.shape, strides, dtype=like.dtype, device="meta")
        try:
            return None if call is None else call(operand, *node.args[1:], **node.kwargs)
        except RuntimeError:  # a view that only a row-major tensor has
            return None


def _of_copy(node: torch.fx.Node, given: _Given) -> Strides | None:
    shape, wanted = tuple(node.meta["val"].shape), node.kwargs.get("memory_format")
    if wanted not in (None, torch.preserve_format):
        return row_major(shape) if wanted is torch.contiguous_format else strides_in_format(wanted, shape)  # type: ignore[arg-type]  # it is a format
    operand: Any = node.args[0]
    if not _is_known(operand.meta["val"]) or tuple(operand.meta["val"].shape) != shape:  # `resize` has other sizes
        return None
    strides = _strides_of(operand, given)
    return None if strides is None else strides_kept(shape, strides)
