"""A graph as a function of its inputs: one executable, or several in turn where `data_dependent_splits` cuts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.passes.split_module import split_module

from jaten_ops import registry
from jaten_ops.arrays import carrier
from jaten_ops.ops import result_checks
from jaten_ops.registry import external_ops

from . import pipeline
from .buckets.bucket_sizes import Buckets
from .buckets.bucketed_graph import bucketed
from .compile_log import GraphLog
from .executable import Executable
from .graph_info import GraphInfo
from .nodes import attribute_of, is_jax_node, outputs_of, overload_of, source_line
from .passes.data_dependent_splits import is_cut, takes_values
from .pipeline import Stage


def runnable(gm: torch.fx.GraphModule, info: GraphInfo, buckets: Buckets) -> Callable[[list[Any]], list[Any]]:
    """The graph as a function of a list of inputs, which it empties.

    Args:
        gm: a graph of jaten's operators.
        info: what is known of it.
        buckets: to which sizes that change are rounded, also those that come out of a part.
    """
    info = pipeline.run_passes(Stage.PART, gm, info)
    if info.parts is None:
        return bucketed(gm, Executable(gm, pipeline.run_passes(Stage.EXECUTABLE, gm, info)), buckets)
    parts = info.parts
    placeholders = [n.target for n in gm.graph.find_nodes(op="placeholder")]
    static_names = frozenset(str(placeholders[i]) for i in info.static_inputs)
    _lay_out_positions(gm)
    split = split_module(gm, None, lambda node: parts[node], keep_original_order=True)  # type: ignore[arg-type]  # it takes None for the root's owner
    for name, part in list(split.named_children()):
        assert isinstance(part, torch.fx.GraphModule)
        if not is_cut(part):
            setattr(split, name, _Segment(part, static_names, buckets))
        else:
            GraphLog(part).outside()
            _hold_against_fakes(part)
            _with_executables(part, buckets)
            part.recompile()

    saved = _saved_inputs(gm, info)

    def run(args: list[Any]) -> list[Any]:
        taken = tuple(args)
        args.clear()
        with torch.no_grad():
            results = list(split(*taken))
        for i in saved:
            results[i] = carrier.snapshot(results[i])
        return results

    return run


def _saved_inputs(gm: torch.fx.GraphModule, info: GraphInfo) -> list[int]:
    """The places of the outputs that are inputs of the device, saved for the backward graph (see `SavedInput`)."""
    outputs = outputs_of(gm.graph)
    seen = len(outputs) if info.seen is None else info.seen
    return [i for i, n in enumerate(outputs) if i >= seen and is_jax_node(n) and n.op == "placeholder"]


def _lay_out_positions(gm: torch.fx.GraphModule) -> None:
    """Has a graph return the positions that `nonzero` finds as ATen's CPU stores them: those of a dimension together.

    What executables return is laid out by them, but this operator runs by itself.
    """
    (output,) = gm.graph.find_nodes(op="output")
    for node in output.all_input_nodes:
        if overload_of(node.target) == "nonzero" and node.meta["val"].device.type == "cpu":
            node.target = _by_dimension


def _by_dimension(x: torch.Tensor) -> torch.Tensor:
    found = torch.ops.jaten.nonzero(x)
    count, dims = found.shape
    # in place, so that it is no view
    return found.t().clone(memory_format=torch.contiguous_format).as_strided_((count, dims), (1, count))


def _with_executables(part: torch.fx.GraphModule, buckets: Buckets) -> None:
    """Makes a branch or a loop that runs by itself call compiled graphs."""
    for node in part.graph.find_nodes(op="get_attr"):
        graph = attribute_of(part, node)
        if isinstance(graph, torch.fx.GraphModule):
            setattr(part, str(node.target), _Segment(graph, frozenset(), buckets))


def _hold_against_fakes(part: torch.fx.GraphModule) -> None:
    """Has the results of users' operators that run by themselves checked: executables are compiled for their fakes."""
    for node in filter(takes_values, part.graph.nodes):
        node.target = _checked(node)


def _checked(node: torch.fx.Node) -> Callable[..., Any]:
    op, said, source = node.target, node.meta["val"], source_line(node)
    assert isinstance(op, torch._ops.OpOverload)
    spec = registry.SPECS[external_ops.name_of(op)]

    def checked(*args: Any, **kwargs: Any) -> Any:
        results = op(*args, **kwargs)
        result_checks.hold_against(spec, results, said, source, _known)
        return results

    return checked


def _known(size: Any) -> int | None:
    return size if isinstance(size, int) else None


class _Segment(torch.nn.Module):
    """A part of the graph that is one executable."""

    def __init__(self, gm: torch.fx.GraphModule, static_names: frozenset[str], buckets: Buckets) -> None:
        super().__init__()
        placeholders = [n.target for n in gm.graph.nodes if n.op == "placeholder"]
        static = frozenset(i for i, name in enumerate(placeholders) if name in static_names)
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        self._single = not isinstance(output.args[0], tuple | list)
        if self._single:
            output.args = ((output.args[0],),)
        self._run = runnable(gm, GraphInfo(static_inputs=static), buckets)

    def forward(self, *args: Any) -> Any:
        results = self._run(list(args))
        return results[0] if self._single else tuple(results)
