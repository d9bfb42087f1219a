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

from .runtime import Executable


def _binds(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and bool(node.meta.get("unbacked_bindings"))


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
        self._executable = Executable(gm, static_inputs=static, strided_outputs=None)

    def forward(self, *args: Any) -> Any:
        results = self._executable(list(args))
        return results[0] if self._single else results


def make_executable(
    gm: torch.fx.GraphModule, static_inputs: frozenset[int], strided_outputs: int | None
) -> Callable[[list[Any]], list[Any]]:
    """The graph as a function of a list of inputs, which it empties: see `Executable`."""
    if not any(map(_binds, gm.graph.nodes)):
        return Executable(gm, static_inputs=static_inputs, strided_outputs=strided_outputs)
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
