"""Graphs in which a size or a number depends on values, as `nonzero` or `item()` do: several executables in turn.

XLA's shapes are fixed when it compiles, so such a graph is cut at the calls that bind new symbols. They run by
themselves, and the stretches between them are compiled for the sizes that come out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.passes.split_module import split_module

from jaten_ops import registry
from jaten_ops.meta import aten_overload

from .runtime import Executable
from .targets import overload_of


def _binds(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    # inside a composition torch does not note that `item()` binds a symbol
    is_number = isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
    reads = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.data_dependent_output in node.target.tags
    # an array has no place in memory; what a view has, torch tells
    reads = reads or node.target is torch.ops.aten.sym_storage_offset.default
    return bool(node.meta.get("unbacked_bindings")) or (is_number and reads)


def _view_in_memory(node: torch.fx.Node) -> None:
    """Has a view that binds symbols, as a slice by a number from a tensor, be ATen's: its offset is one of them."""
    overload = overload_of(node.target)
    spec = registry.SPECS.get(overload) if overload is not None else None
    operand: Any = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], torch.fx.Node) else None
    if spec is not None and spec.kind == "view" and isinstance(operand, torch.Tensor) and operand.device.type != "jax":
        node.target = aten_overload(spec.overload) or node.target


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
        self._executable = Executable(gm, static_inputs=static, seen=None)

    def forward(self, *args: Any) -> Any:
        results = self._executable(list(args))
        return results[0] if self._single else results


def make_executable(
    gm: torch.fx.GraphModule, static_inputs: frozenset[int], seen: int | None
) -> Callable[[list[Any]], list[Any]]:
    """The graph as a function of a list of inputs, which it empties: see `Executable`."""
    if not any(map(_binds, gm.graph.nodes)):
        return Executable(gm, static_inputs=static_inputs, seen=seen)
    for node in filter(_binds, gm.graph.nodes):
        _view_in_memory(node)
    placeholders = [n.target for n in gm.graph.nodes if n.op == "placeholder"]
    static_names = frozenset(str(placeholders[i]) for i in static_inputs)
    parts = _parts(gm)
    split = split_module(gm, None, lambda node: parts[node], keep_original_order=True)  # type: ignore[arg-type]  # it takes None for the root's owner
    for name, part in list(split.named_children()):
        assert isinstance(part, torch.fx.GraphModule)
        if not any(map(_binds, part.graph.nodes)):
            setattr(split, name, _Segment(part, static_names))

    def run(args: list[Any]) -> list[Any]:
        taken = tuple(args)
        args.clear()
        with torch.no_grad():
            return list(split(*taken))

    return run


def _parts(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, int]:
    """The number of the part that each node belongs to; a call that binds symbols is one, with its results."""
    parts: dict[torch.fx.Node, int] = {}
    part = 0
    for node in gm.graph.nodes:
        if _binds(node):
            parts[node] = part + 1
            part += 2
        elif node.target is operator.getitem and _binds(node.args[0]):
            parts[node] = parts[node.args[0]]
        else:
            parts[node] = part
    return parts
