"""A graph as text, as logs and the golden tests of passes show it."""

from __future__ import annotations

from typing import Any

import torch

from .nodes import graphs_inside


def text_of(gm: torch.fx.GraphModule) -> str:
    """A graph, and behind it those inside: one node a line, as `name: dtype[sizes] = operator(arguments)`."""
    names = {id(inner): name for name, inner in gm.named_modules() if name}
    graphs = [("", gm), *((f"{names[id(inner)]}:\n", inner) for inner in reversed(graphs_inside(gm)))]
    return "\n\n".join(name + "\n".join(map(_line, graph.graph.nodes)) for name, graph in graphs)


def _line(node: torch.fx.Node) -> str:
    arguments = ", ".join(map(_argument, [*node.args, *(_Named(k, v) for k, v in node.kwargs.items())]))
    if node.op == "output":
        return f"return {arguments}"
    head = node.name + _described(node.meta.get("val", node.meta.get("example_value")))
    if node.op == "placeholder":
        return head
    return f"{head} = {node.target}" if node.op == "get_attr" else f"{head} = {_target(node)}({arguments})"


class _Named:
    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __str__(self) -> str:
        return f"{self._name}={self._value}"


def _argument(value: Any) -> str:
    """An argument; an operator that is one by its name."""
    return value.name() if isinstance(value, torch._ops.OpOverload) else str(value)


def _target(node: torch.fx.Node) -> str:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        place = "" if value.device.type == "cpu" else f" on {value.device.type}"
        return f": {str(value.dtype).removeprefix('torch.')}{list(value.shape)}{place}"
    return f": {value}" if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else ""
