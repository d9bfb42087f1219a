"""The operators in a graph: which jaten op each ATen call becomes, and which calls are plain Python."""

from __future__ import annotations

import operator
import os
import re
from typing import Any

import torch

from jaten_ops import foreign, registry, unwritten
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.lazy import operator_of
from jaten_ops.schema import READS_MEMORY

_FRAME = re.compile(r'File "(.+?)", line (\d+), in .+\n(.+)')
_TORCH = os.path.dirname(torch.__file__)


def overload_of(target: Any) -> str | None:
    """The key in the registry's tables of an operator of ATen, jaten or a user; None for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    return foreign.name_of(target)


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
        call.meta = node.meta | {"val": node.meta["val"][1] if len(op._schema.returns) == 1 else node.meta["val"][1:]}
        for item in [u for u in node.users if u.args[1] > 0]:
            if len(op._schema.returns) == 1:
                item.replace_all_uses_with(call)
            else:
                with graph.inserting_before(item):
                    item.replace_all_uses_with(graph.call_function(operator.getitem, (call, item.args[1] - 1)), True)
    for node in reversed(graph.nodes):
        is_item = node.target is operator.getitem and node.args[0] in ordered
        if is_item or node in ordered or node.target in _TOKENS:
            graph.erase_node(node)


def _start_at_own_elements(node: torch.fx.Node) -> None:
    """Makes the offset of an `as_strided` count from the operand's first element: its array has no others.

    Raises:
        UnsupportedInputError: the operand's elements do not lie in memory row by row, as in its array.
    """
    operand = node.args[0]
    assert isinstance(operand, torch.fx.Node)
    value = operand.meta["val"]
    if not value.is_contiguous():
        got = f"strides {tuple(value.stride())} in as_strided{source_line(node)}"
        raise UnsupportedInputError("tensor", got, "a contiguous one; call .contiguous() before")
    offset = node.args[3] if len(node.args) > 3 else None
    if isinstance(offset, int) and isinstance(value.storage_offset(), int):
        node.args = (*node.args[:3], offset - value.storage_offset())


_DONE = "jaten: its operators are jaten's"


def retarget(gm: torch.fx.GraphModule) -> None:
    """Makes each ATen node the jaten op of the same overload. Sizes (`sym_size.int` and its kin) stay Python.

    The graphs inside are changed likewise, each once: one may be in several places.

    Raises:
        MissingKernelError: an op without kernel, with the line of the user's program.
        InvalidSchemaError: the kernel for an op of another library is for another schema than that has.
    """
    if gm.meta.get(_DONE):
        return
    gm.meta[_DONE] = True
    for inner in graphs_in(gm):
        retarget(inner)
    _drop_tokens(gm.graph)
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
        if key not in registry.KERNELS:
            raise registry.missing(target.name(), source_line(node))
        if foreign.is_foreign(key):
            foreign.require_schema(registry.SPECS[key], target)
        if key in READS_MEMORY:
            _start_at_own_elements(node)
        if target.namespace == "aten":
            node.target = operator_of(key)
        if key in unwritten.OVERLOADS and unwritten.is_filled():
            _fill(gm.graph, node)
    gm.recompile()


def _fill(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Puts into new memory what torch's deterministic algorithms do."""
    with graph.inserting_after(node):
        filled = graph.call_function(operator_of("fill.Scalar"), (node, unwritten.value_of(node.meta["val"].dtype)))
    filled.meta = dict(node.meta)
    node.replace_all_uses_with(filled, lambda user: user is not filled)
