"""The operators in a graph: which jaten op each ATen call becomes, and which calls are plain Python."""

from __future__ import annotations

import operator
import os
import re
from typing import Any

import torch

from jaten_ops import registry
from jaten_ops.arrays import uninitialized_values
from jaten_ops.arrays.strides import order_of
from jaten_ops.arrays.view_ops import is_view
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.meta import aten_overload
from jaten_ops.ops import memory_layout
from jaten_ops.ops.namespace import operator_of
from jaten_ops.registry import external_ops
from jaten_ops.schema import KEEPS_MEMORY_ORDER, READS_MEMORY

from .third_party_calls import is_printed, is_unknown

_FRAME = re.compile(r'File "(.+?)", line (\d+), in .+\n(.+)')
_TORCH = os.path.dirname(torch.__file__)


def overload_of(target: Any) -> str | None:
    """The key in the registry's tables of an operator of ATen, jaten or a user; None for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    return external_ops.name_of(target)


def is_higher_order(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator whose operands are graphs."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def attribute_of(gm: torch.nn.Module, node: torch.fx.Node) -> Any:
    """What a `get_attr` node stands for: a tensor, or a graph inside the graph."""
    value: Any = gm
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def graphs_in(gm: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The graphs that are operands in a graph, each once."""
    found = [attribute_of(gm, node) for node in gm.graph.find_nodes(op="get_attr")]
    return list(dict.fromkeys(value for value in found if isinstance(value, torch.fx.GraphModule)))


def source_line(node: torch.fx.Node) -> str:
    """The line of the user's program that a node comes from, as " (file.py:12: y = f(x))"; empty if unknown."""
    frame = frame_of(node)
    return "" if frame is None else " ({}:{}: {})".format(*frame)


def frame_of(node: torch.fx.Node) -> tuple[str, str, str] | None:
    """The file, line and text of the user's program that a node comes from.

    Of the frames that Dynamo kept, the innermost one outside torch; the innermost one if all are torch's.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    own = [f for f in frames if not f[0].startswith(_TORCH)]
    file, line, code = (own or frames)[-1]
    return file, line, code.strip()


def _returns_symints(target: torch._ops.OpOverload) -> bool:
    returns = target._schema.returns
    return bool(returns) and all(str(r.type) in ("int", "bool", "float", "number") for r in returns)


_TOKENS = (torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)


def _drop_tokens(graph: torch.fx.Graph) -> None:
    """Replaces `with_effects(token, op, ...)`, by which AOTAutograd orders effects, with calls of the ops.

    In an executable the order is that of the data.
    """
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
                    item.replace_all_uses_with(graph.call_function(operator.getitem, (call, item.args[1] - 1)), True)
    for node in reversed(graph.nodes):
        is_item = node.target is operator.getitem and node.args[0] in ordered
        if is_item or node in ordered or node.target in _TOKENS:
            graph.erase_node(node)


_STARTS = "jaten: its offset counts from its operand's first element"


def read_own_memory(graph: torch.fx.Graph) -> None:
    """Makes each `as_strided` one of an array that has all the memory, row by row, and its offset count from there.

    Raises:
        UnsupportedInputError: the memory has elements that are in no array, or they lie in no order.
    """
    for node in graph.nodes:
        if overload_of(node.target) in READS_MEMORY and not node.meta.get(_STARTS):
            node.meta[_STARTS] = True
            _start_at_own_elements(node)
        elif overload_of(node.target) in KEEPS_MEMORY_ORDER and not node.meta.get(_STARTS):
            node.meta[_STARTS] = True
            _keep_memory_order(node)


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
    with node.graph.inserting_before(node):
        given = node.graph.call_function(torch.ops.aten.permute.default, (node.args[0], before))
        given.meta["val"] = operand.permute(before)
    with node.graph.inserting_after(node):
        result = node.graph.call_function(torch.ops.aten.permute.default, (node, memory_layout.inverse(after)))
        result.meta = dict(node.meta)
    node.replace_all_uses_with(result, lambda user: user is not result)
    node.target = torch.ops.aten.resize.default
    node.args, node.kwargs = (given, [value.shape[d] for d in after]), {}
    node.meta["val"] = value.permute(after)


def _start_at_own_elements(node: Any) -> None:
    owner = _owner_of_memory(node.args[0])
    offset = node.args[3] if len(node.args) > 3 else None
    if offset is None:
        offset = node.args[0].meta["val"].storage_offset()
    value = owner.meta["val"]
    with node.graph.inserting_before(node):
        if not value.is_contiguous():
            order = _order(value)
            if order is None:
                got = f"strides {tuple(value.stride())} in as_strided{source_line(node)}"
                raise UnsupportedInputError("tensor", got, "a contiguous one; call .contiguous() before")
            owner = node.graph.call_function(torch.ops.aten.permute.default, (owner, list(order)))
            value = owner.meta["val"] = value.permute(order)
        first = value.storage_offset()
        if isinstance(offset, int):
            offset = offset - first
        elif first:
            offset = node.graph.call_function(operator.sub, (offset, first))
    node.args = (owner, *node.args[1:3], offset)


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The order in which the dimensions of a dense tensor lie that is not row-major; None of others."""
    geometry = (*value.shape, *value.stride())
    return order_of(tuple(value.shape), value.stride()) if all(isinstance(n, int) for n in geometry) else None


def _owner_of_memory(operand: Any) -> Any:
    """The node whose memory a node is a view of; itself if it is of none."""
    made_by = operand.args[0] if operand.target is operator.getitem else operand
    overload = overload_of(made_by.target)
    aten = None if overload is None else aten_overload(overload)
    return operand if aten is None or not is_view(aten) else _owner_of_memory(made_by.args[0])


_DONE = "jaten: its operators are jaten's"


def retarget(gm: torch.fx.GraphModule) -> None:
    """Makes each ATen node the jaten op of the same overload. Sizes (`sym_size.int` and its kin) stay Python.

    The graphs inside are changed likewise, each once: one may be in several places.

    Raises:
        MissingKernelError: an op of ATen's without kernel, with the line of the user's program.
        InvalidSchemaError: the kernel for an op of another library is for another schema than that has.
    """
    if gm.meta.get(_DONE):
        return
    gm.meta[_DONE] = True
    for inner in graphs_in(gm):
        retarget(inner)
    _drop_tokens(gm.graph)
    _conjugate_numbers(gm.graph)
    read_own_memory(gm.graph)
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        if target is torch.ops.prims.convert_element_type.default:  # of numbers that torch made tensors
            node.args, node.kwargs, target = node.args[:1], {"dtype": node.args[1]}, torch.ops.aten._to_copy.default
        if target is torch.ops.aten.true_divide.Tensor:  # likewise
            target = torch.ops.aten.div.Tensor
        key = overload_of(target)
        if key is None or _returns_symints(target):
            continue
        if is_unknown(node):
            continue
        if key not in registry.KERNELS:
            raise registry.missing(target.name(), source_line(node))
        if external_ops.is_foreign(key):
            external_ops.require_schema(registry.SPECS[key], target)
        if target.namespace == "aten":
            node.target = operator_of(key)
        if key in uninitialized_values.OVERLOADS and uninitialized_values.is_filled():
            _fill(gm.graph, node)
    gm.recompile()


def _conjugate_numbers(graph: torch.fx.Graph) -> None:
    """Takes out the conjugates of Python's numbers, which gradients have, and whose results are numbers, too."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._conj.default):
        value = node.args[0]
        if isinstance(value, int | float | complex):
            conjugate = {node: value.conjugate()}
            for user in list(node.users):
                user.args, user.kwargs = torch.fx.map_arg((user.args, user.kwargs), lambda n, c=conjugate: c.get(n, n))  # type: ignore[misc]  # what it gives need not be a node
            graph.erase_node(node)


def _fill(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Puts into new memory what torch's deterministic algorithms do."""
    with graph.inserting_after(node):
        filled = graph.call_function(
            operator_of("fill.Scalar"), (node, uninitialized_values.value_of(node.meta["val"].dtype))
        )
    filled.meta = dict(node.meta)
    node.replace_all_uses_with(filled, lambda user: user is not filled)
