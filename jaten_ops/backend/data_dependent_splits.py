"""Graphs that are several executables in turn, cut at calls that run by themselves.

Such are those by which a size or a number depends on values, as `nonzero` or `item()`: XLA's shapes are fixed when it
compiles, and the stretches behind a call that binds new symbols are compiled for the sizes that come out. Such are also
operators of other libraries that have no kernel (see `third_party_calls`), and `print`. A branch or a loop that has one
of these in its graphs runs by itself, too, and these graphs are cut in their turn.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_leaves

from jaten_ops import registry
from jaten_ops.meta import aten_overload

from .executable import Executable
from .layout import is_symbolic
from .subgraphs import RULES
from .targets import attribute_of, is_higher_order, overload_of
from .third_party_calls import is_printed, is_unknown, run_as_it_is

_NONE: Mapping[int, int] = {}


def _binds(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    # inside a composition torch does not note that `item()` binds a symbol
    is_number = isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
    reads = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.data_dependent_output in node.target.tags
    # an array has no place in memory; what a view has, torch tells
    reads = reads or node.target is torch.ops.aten.sym_storage_offset.default
    return bool(node.meta.get("unbacked_bindings")) or (is_number and reads) or _has_new_symbols(node)


def _has_new_symbols(node: torch.fx.Node) -> bool:
    """Whether the sizes of an operator's result have symbols that its operands have not.

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
    """Whether a node binds a symbol, or no kernel runs it, or a graph that is its operand has such a node."""
    if _binds(node) or is_unknown(node) or is_printed(node):
        return True
    graphs = [attribute_of(gm, n) for n in node.all_input_nodes if n.op == "get_attr"] if is_higher_order(node) else []
    return any(_is_cut(graph) for graph in graphs if isinstance(graph, torch.fx.GraphModule))


def _is_cut(gm: torch.fx.GraphModule) -> bool:
    return any(_runs_by_itself(gm, node) for node in gm.graph.nodes)


def _view_in_memory(node: torch.fx.Node) -> None:
    """Has a view that binds symbols, as a slice by a number from a tensor, be ATen's: its offset is one of them."""
    overload = overload_of(node.target)
    spec = registry.SPECS.get(overload) if overload is not None else None
    operand: Any = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], torch.fx.Node) else None
    if spec is not None and spec.kind == "view" and isinstance(operand, torch.Tensor) and operand.device.type != "jax":
        node.target = aten_overload(spec.overload) or node.target


def _numbers_as_tensors(gm: torch.fx.GraphModule) -> None:
    """Has the numbers that come out of loops and branches be tensors, and read where they are used.

    Then only these reads bind symbols, and a loop that carries a number is part of an executable as others are.
    """
    for node in [n for n in gm.graph.nodes if n.target in RULES]:
        found = node.meta.get("val")
        each = list(found) if isinstance(found, list | tuple) else [found]
        tensors = [v for v in each if isinstance(v, torch.Tensor)]
        numbers = {symbol for v in each if isinstance(v, torch.SymInt) for symbol in free_symbols(v)}
        if not numbers or not tensors or any(free_symbols([*t.shape, *t.stride()]) & numbers for t in tensors):
            continue
        for item in [u for u in node.users if isinstance(u.meta.get("val"), torch.SymInt)]:
            _read(gm.graph, item, tensors[0])
        node.meta.pop("unbacked_bindings", None)


def _read(graph: torch.fx.Graph, item: torch.fx.Node, like: Any) -> None:
    """Makes a number that a node stands for a tensor, and its users take what is read of it."""
    users, number = list(item.users), item.meta["val"]
    with like.fake_mode:
        item.meta = item.meta | {"val": torch.empty((), dtype=torch.int64, device=like.device)}
    item.meta.pop("unbacked_bindings", None)
    if users:
        with graph.inserting_after(item):
            read = graph.call_function(torch.ops.aten._local_scalar_dense.default, (item,))
        read.meta["val"] = number
        for user in users:
            user.replace_input_with(item, read)


def _with_executables(part: torch.fx.GraphModule) -> None:
    """Has a branch or a loop that runs by itself call compiled graphs."""
    for node in part.graph.find_nodes(op="get_attr"):
        graph = attribute_of(part, node)
        if isinstance(graph, torch.fx.GraphModule):
            setattr(part, str(node.target), _Segment(graph, frozenset()))
    part.recompile()


class _Segment(torch.nn.Module):
    """A stretch of the graph that is one executable."""

    def __init__(self, gm: torch.fx.GraphModule, static_names: frozenset[str]) -> None:
        super().__init__()
        placeholders = [n.target for n in gm.graph.nodes if n.op == "placeholder"]
        static = frozenset(i for i, name in enumerate(placeholders) if name in static_names)
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        self._single = not isinstance(output.args[0], tuple | list)
        if self._single:
            output.args = ((output.args[0],),)
        self._run = make_executable(gm, static, None)

    def forward(self, *args: Any) -> Any:
        results = self._run(list(args))
        return results[0] if self._single else tuple(results)


def make_executable(
    gm: torch.fx.GraphModule, static_inputs: frozenset[int], seen: int | None, written: Mapping[int, int] = _NONE
) -> Callable[[list[Any]], list[Any]]:
    """The graph as a function of a list of inputs, which it empties: see `Executable`."""
    _numbers_as_tensors(gm)
    if not _is_cut(gm):
        return Executable(gm, static_inputs=static_inputs, seen=seen, written=written)
    for node in filter(_binds, gm.graph.nodes):
        _view_in_memory(node)
    for node in filter(is_unknown, gm.graph.nodes):
        run_as_it_is(node)
    placeholders = [n.target for n in gm.graph.nodes if n.op == "placeholder"]
    static_names = frozenset(str(placeholders[i]) for i in static_inputs)
    parts = _parts(gm)
    split = split_module(gm, None, lambda node: parts[node], keep_original_order=True)  # type: ignore[arg-type]  # it takes None for the root's owner
    for name, part in list(split.named_children()):
        assert isinstance(part, torch.fx.GraphModule)
        if not _is_cut(part):
            setattr(split, name, _Segment(part, static_names))
        else:
            _with_executables(part)

    def run(args: list[Any]) -> list[Any]:
        taken = tuple(args)
        args.clear()
        with torch.no_grad():
            return list(split(*taken))

    return run


def _parts(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, int]:
    """The number of the part that each node belongs to, with its results; a call that runs by itself is one."""
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
