"""Writes to inputs that AOTAutograd leaves in a graph, as it must if a program replaces an input's memory.

`x.data = y` does that. The graph returns the written values before its own outputs, and they are stored after the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..graph_info import GraphInfo, InputWrite
from ..nodes import overload_of

_WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "copy_": torch.ops.aten.copy_.default,
    "set_.source_Tensor": torch.ops.aten.set_.source_Tensor,
}
if hasattr(torch.ops.aten, "shallow_copy_data_"):  # since torch 2.15, for `x.data = y`
    _WRITES["shallow_copy_data_"] = torch.ops.aten.shallow_copy_data_.default
_SAME = ("detach", "alias")


def input_writes(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Removes the writes to inputs from a graph, and makes it return the written values before its own results."""
    graph = gm.graph
    numbers = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    calls = [n for n in graph.nodes if overload_of(n.target) in _WRITES and n.args[0] in numbers]
    (output,) = graph.find_nodes(op="output")
    written = [_source(node.args[1]) for node in calls]
    found = [InputWrite(numbers[node.args[0]], _WRITES[str(overload_of(node.target))]) for node in calls]
    for node in calls:
        node.replace_all_uses_with(node.args[1])  # a program that returns the input: AOTAutograd puts that in its place
        graph.erase_node(node)
    if calls:
        output.args = ((*written, *output.args[0]),)
    return info.having(writes=found)


def _source(value: Any) -> Any:
    """The tensor of which a value is an alias; memory that is given to two tensors belongs to both."""
    while isinstance(value, torch.fx.Node) and overload_of(value.target) in _SAME:
        value = value.args[0]
    return value


def with_writes(
    run: Callable[[list[Any]], list[Any]], writes: Sequence[InputWrite]
) -> Callable[[list[Any]], list[Any]]:
    """A function that runs a graph and writes its first results to inputs."""
    if not writes:
        return run

    def call(args: list[Any]) -> list[Any]:
        targets = [args[i] for i, _ in writes]
        results = run(args)
        with torch.no_grad():
            for target, (_, write), value in zip(targets, writes, results, strict=False):
                write(target, value)
        return results[len(writes) :]

    return call
