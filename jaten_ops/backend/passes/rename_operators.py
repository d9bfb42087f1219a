"""Each ATen operator in a graph as the jaten operator of the same overload."""

from __future__ import annotations

import operator
from typing import Any

import torch

from jaten_ops import registry
from jaten_ops.meta import aten_overload
from jaten_ops.ops.namespace import operator_of
from jaten_ops.registry import external_ops
from jaten_ops.schema import READS_MEMORY

from ..graph_info import GraphInfo
from ..nodes import attribute_of, is_of_meta, is_without_values, overload_of, source_line
from .third_party_calls import is_unknown


def rename_operators(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Renames them. Sizes (`sym_size.int` and its kin) stay Python, operators of a user as they are, and those of
    tensors of the device `meta` ATen's.

    Raises:
        MissingKernelError: an op of ATen's without kernel, with the line of the user's program.
        InvalidSchemaError: the kernel for an op of another library is for another schema than that has.
    """
    for node in gm.graph.find_nodes(op="get_attr"):
        _copy_without_values(node, attribute_of(gm, node))
    for node in gm.graph.nodes:
        if is_without_values(node):
            _leave_to_aten(node)
        elif node.op == "call_function":
            _rename(node)
    return info


def _copy_without_values(node: torch.fx.Node, constant: Any) -> None:
    """Makes a constant of the device `meta` the operand of a call, as a part of a graph begins with one."""
    if is_of_meta(constant):
        with node.graph.inserting_after(node):
            copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta["val"] = constant
        node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _leave_to_aten(node: torch.fx.Node) -> None:
    """Makes an operator of jaten's, as tensors of the device have recorded it, ATen's."""
    overload = overload_of(node.target)
    if overload in registry.SPECS and not external_ops.is_foreign(overload):
        node.target = aten_overload(registry.SPECS[overload].overload) or node.target


def _rename(node: torch.fx.Node) -> None:
    target: Any = node.target
    if target is torch.ops.prims.convert_element_type.default:  # for numbers that torch made tensors
        node.args, node.kwargs, target = node.args[:1], {"dtype": node.args[1]}, torch.ops.aten._to_copy.default
    if target is torch.ops.aten.true_divide.Tensor:  # likewise
        target = torch.ops.aten.div.Tensor
    key = overload_of(target)
    if key is None or _returns_symints(target) or is_unknown(node):
        return
    if key not in registry.KERNELS:
        raise registry.missing(target.name(), source_line(node))
    if external_ops.is_foreign(key):
        external_ops.require_schema(registry.SPECS[key], target)
    if target.namespace == "aten":
        if key in READS_MEMORY or (key == "as_strided_scatter" and node.args[4:] not in ((), (None,))):
            _count_from_first_element(node)
        node.target = operator_of(key)


def _count_from_first_element(node: Any) -> None:
    """Has an offset, which ATen counts from where the memory begins, count from the operand's first element."""
    operand, *others, offset = node.args
    first = operand.meta["val"].storage_offset()
    if isinstance(offset, int):
        offset = offset - first
    elif first:
        with node.graph.inserting_before(node):
            offset = node.graph.call_function(operator.sub, (offset, first))
    node.args = (operand, *others, offset)


def _returns_symints(target: torch._ops.OpOverload) -> bool:
    returns = target._schema.returns
    return bool(returns) and all(str(r.type) in ("int", "bool", "float", "number") for r in returns)
