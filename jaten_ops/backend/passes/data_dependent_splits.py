"""Graphs that are split into several executables, at calls that run by themselves.

Such are those by which a size or a number depends on values, as `nonzero` or `item()`: XLA's shapes are fixed when it
compiles, and the stretches behind a call that binds new symbols are compiled for the sizes that come out. Such are also
operators of other libraries that have no kernel (see `third_party_calls`), those of users with `eager` kernels, those
of tensors of the device `meta`, and `print`. A branch or a loop that has one of these in its graphs runs by itself,
too, and these graphs are cut in their turn (see `split_graph`).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from jaten_ops import registry
from jaten_ops.meta import aten_overload
from jaten_ops.registry import external_ops

from ..graph_info import GraphInfo
from ..layout import is_symbolic
from ..nodes import attribute_of, is_higher_order, is_without_values, overload_of
from .third_party_calls import is_printed, is_unknown


def data_dependent_splits(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds to which part each node belongs; none where the graph is one executable."""
    if not is_cut(gm):
        return info
    for node in filter(_binds, gm.graph.nodes):
        _view_in_memory(node)
    return info.having(parts=_parts(gm))


def _binds(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    # inside a composition torch does not record that `item()` binds a symbol
    is_number = isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
    reads = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.data_dependent_output in node.target.tags
    # an array has no place in memory; what a view has, torch tells
    reads = reads or node.target is torch.ops.aten.sym_storage_offset.default
    return bool(node.meta.get("unbacked_bindings")) or (is_number and reads) or _has_new_symbols(node)


def _has_new_symbols(node: torch.fx.Node) -> bool:
    """True if the sizes of an operator's result have symbols that its operands do not have.

    In a branch or a loop torch notes nothing else of it.
    """
    if is_higher_order(node):
        return False
    found = _unbacked(node.meta.get("val"))
    return bool(found) and not found <= _unbacked([n.meta.get("val") for n in node.all_input_nodes])


def _unbacked(values: Any) -> set[Any]:
    symbolic = [v for v in tree_leaves(values) if is_symbolic(v)]
    return set(free_unbacked_symbols(symbolic)) if symbolic else set()


def _runs_by_itself(gm: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """True if a node binds a symbol, if no kernel runs it, or if a graph among its operands has such a node."""
    if _binds(node) or is_unknown(node) or is_printed(node) or takes_values(node) or is_without_values(node):
        return True
    graphs = [attribute_of(gm, n) for n in node.all_input_nodes if n.op == "get_attr"] if is_higher_order(node) else []
    return any(is_cut(graph) for graph in graphs if isinstance(graph, torch.fx.GraphModule))


def takes_values(node: torch.fx.Node) -> bool:
    """True for an operator of a user whose kernel, or its gradient, is called with concrete arrays."""
    overload = overload_of(node.target) if node.op == "call_function" else None
    if overload not in registry.KERNELS or not external_ops.is_foreign(overload):
        return False
    return registry.KERNELS[overload].eager is True


def is_cut(gm: torch.fx.GraphModule) -> bool:
    """True if some call in a graph runs by itself."""
    return any(_runs_by_itself(gm, node) for node in gm.graph.nodes)


def _view_in_memory(node: torch.fx.Node) -> None:
    """Makes views that bind symbols, such as a slice by a number from a tensor, ATen's: the offset is a symbol."""
    overload = overload_of(node.target)
    spec = registry.SPECS.get(overload) if overload is not None else None
    operand: Any = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], torch.fx.Node) else None
    if spec is not None and spec.kind == "view" and isinstance(operand, torch.Tensor) and operand.device.type != "jax":
        node.target = aten_overload(spec.overload) or node.target


def _parts(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, int]:
    """The index of the part to which each node belongs; a call that runs by itself is a part."""
    parts: dict[torch.fx.Node, int] = {}
    part = 0
    for node in gm.graph.nodes:
        if _runs_by_itself(gm, node):
            parts[node] = part + 1
            part += 2
        elif node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
            parts[node] = parts[node.args[0]]
        else:
            parts[node] = part
    return parts
