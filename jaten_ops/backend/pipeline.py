"""The passes over a graph, in order: `PASSES`, a table with a row for each.

AOTAutograd makes of Dynamo's graph one of forward and backward, which is parted into two, or one for inference if there
are no gradients. Each of these has ATen's operators, then jaten's, and becomes executables. A pass takes a graph and
what is known of it, changes the one, and returns the other with what it has found.

`TORCH_LOGS="+jaten_ops"` shows the graph after each pass that changed it.
"""

from __future__ import annotations

import enum
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from .graph_info import GraphInfo
from .graph_text import text_of
from .nodes import graphs_inside
from .passes.concat_gradients import concat_gradients
from .passes.conjugate_numbers import conjugate_numbers
from .passes.counted_results import counted_results
from .passes.data_dependent_splits import data_dependent_splits
from .passes.device_strides import device_strides
from .passes.expanded_index_scatters import expanded_index_scatters
from .passes.filled_memory import filled_memory
from .passes.input_tokens import input_tokens
from .passes.input_writes import input_writes
from .passes.kernel_results import kernel_results
from .passes.loop_numbers import loop_numbers
from .passes.new_values import new_values
from .passes.ordered_effects import ordered_effects
from .passes.out_of_place_views import out_of_place_views
from .passes.output_offsets import output_offsets
from .passes.output_views import output_views
from .passes.own_memory import own_memory
from .passes.partial_writes import partial_writes
from .passes.placed_gradients import placed_gradients
from .passes.random_results import random_results
from .passes.recompute_gathers import recompute_gathers
from .passes.recompute_norms import recompute_norms
from .passes.rename_operators import rename_operators
from .passes.replaced_memory import replaced_memory
from .passes.static_inputs import static_inputs
from .passes.stored_factors import stored_factors
from .passes.supported_operators import supported_operators
from .passes.third_party_calls import third_party_calls
from .passes.traced_ints import traced_ints
from .passes.unseen_writes import unseen_writes
from .passes.values_before_writes import values_before_writes
from .passes.view_relations import view_relations
from .passes.wrapped_results import wrapped_results
from .passes.written_inputs import written_inputs

_log = logging.getLogger(__name__)


class Stage(enum.Enum):
    """The kind of graph that a pass runs on, and whose operators it has."""

    CAPTURED = "torch's functions, as Dynamo has captured them"
    JOINT = "ATen's, forward and backward in one, before they are parted"
    ATEN = "ATen's, one graph: forward, backward or inference"
    JATEN = "jaten's, the same graph"
    PART = "jaten's, that graph or one inside it, before it is cut into executables"
    EXECUTABLE = "jaten's, what becomes one executable"


class Pass(NamedTuple):
    """A row of the table.

    Attributes:
        name: that of its module.
        on: the graph.
        run: changes a graph; returns what is known of it.
        why: in a line.
        inside: whether it is run on the graphs inside, too, each once.
    """

    name: str
    on: Stage
    run: Callable[[torch.fx.GraphModule, GraphInfo], GraphInfo]
    why: str
    inside: bool = False


PASSES: Sequence[Pass] = (
    Pass("view_relations", Stage.CAPTURED, view_relations, "autograd is to know views on the device as such"),
    Pass(
        "wrapped_results", Stage.CAPTURED, wrapped_results, "a program returns tensors of the device, and no carriers"
    ),
    Pass("out_of_place_views", Stage.CAPTURED, out_of_place_views, "views made before y.t_() get wrong gradients"),
    Pass("replaced_memory", Stage.CAPTURED, replaced_memory, "with `x.data = y` AOTAutograd has to leave writes alone"),
    Pass("counted_results", Stage.JOINT, counted_results, "AOTAutograd parts results by a count from another trace"),
    Pass("kernel_results", Stage.JOINT, kernel_results, "what is saved is as the kernel gives it"),
    Pass("placed_gradients", Stage.JOINT, placed_gradients, "over a mesh a gradient is made where its parameter is"),
    Pass("own_memory", Stage.JOINT, own_memory, "as_strided reads what owns the memory, not a view that is saved"),
    Pass("recompute_norms", Stage.JOINT, recompute_norms, "what a norm gives is cheaper computed again than saved"),
    Pass(
        "values_before_writes", Stage.JOINT, values_before_writes, "the input has another value when the backward runs"
    ),
    Pass("recompute_gathers", Stage.JOINT, recompute_gathers, "rows are cheaper gathered again than saved"),
    Pass(
        "random_results", Stage.JOINT, random_results, "a random operator that is run again would draw another result"
    ),
    Pass("counted_results", Stage.ATEN, counted_results, "as above, for inference"),
    Pass("unseen_writes", Stage.ATEN, unseen_writes, "writes under no_grad give their inputs no gradients"),
    Pass("input_tokens", Stage.ATEN, input_tokens, "AOTAutograd leaves tokens as inputs, and passes none"),
    Pass("kernel_results", Stage.ATEN, kernel_results, "as above, for inference and graphs inside", True),
    Pass("stored_factors", Stage.ATEN, stored_factors, "gradients of determinants are of factors as ATen keeps them"),
    Pass("written_inputs", Stage.ATEN, written_inputs, "inputs that share memory are looked at if one is written to"),
    Pass(
        "output_offsets", Stage.ATEN, output_offsets, "AOTAutograd asks outputs where they start, sizes being dynamic"
    ),
    Pass("input_writes", Stage.ATEN, input_writes, "an executable writes to no input: values are returned and copied"),
    Pass("supported_operators", Stage.ATEN, supported_operators, "what cannot be run is refused before all else", True),
    Pass("static_inputs", Stage.ATEN, static_inputs, "the arrays of parameters are made once"),
    Pass(
        "new_values", Stage.ATEN, new_values, "which outputs AOTAutograd writes to inputs, and which are the program's"
    ),
    Pass("output_views", Stage.ATEN, output_views, "an executable returns no views: they are made after it"),
    Pass("device_strides", Stage.ATEN, device_strides, "results on the device lie as those of eager calls"),
    Pass("ordered_effects", Stage.ATEN, ordered_effects, "in an executable the order of effects is that of data", True),
    Pass("conjugate_numbers", Stage.ATEN, conjugate_numbers, "gradients have conjugates of Python's numbers", True),
    Pass("own_memory", Stage.ATEN, own_memory, "as above, for inference and graphs inside", True),
    Pass(
        "rename_operators", Stage.ATEN, rename_operators, "each ATen operator is the jaten operator of its name", True
    ),
    Pass("filled_memory", Stage.ATEN, filled_memory, "deterministic algorithms fill new memory", True),
    Pass("expanded_index_scatters", Stage.JATEN, expanded_index_scatters, "rows by their numbers are ten times faster"),
    Pass("concat_gradients", Stage.JATEN, concat_gradients, "gradients of parts are joined, not added in zeros"),
    Pass("loop_numbers", Stage.PART, loop_numbers, "a loop that carries a number is part of an executable"),
    Pass(
        "third_party_calls", Stage.PART, third_party_calls, "operators without a kernel run as their library has them"
    ),
    Pass(
        "data_dependent_splits", Stage.PART, data_dependent_splits, "XLA's shapes are fixed: cut where values give one"
    ),
    Pass("traced_ints", Stage.EXECUTABLE, traced_ints, "a number on which no shape depends compiles once"),
    Pass("partial_writes", Stage.EXECUTABLE, partial_writes, "of an input of which a part is new only that is written"),
)
"""All of them, in the order in which they are run."""

_DONE: weakref.WeakSet[torch.fx.GraphModule] = weakref.WeakSet()  # graphs inside: forward and backward share some


def run_passes(stage: Stage, gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Runs the passes of a stage on a graph, in their order; returns what is known of it after them."""
    rows = [row for row in PASSES if row.on is stage]
    inside = [graph for graph in graphs_inside(gm) if graph not in _DONE] if any(row.inside for row in rows) else []
    before = text_of(gm) if _log.isEnabledFor(logging.DEBUG) else None
    for row in rows:
        for graph in inside if row.inside else ():
            row.run(graph, info)
        info = row.run(gm, info)
        if before is not None:
            before = _tell(row, gm, info, before)
    _DONE.update(inside)
    return info


_ON_FUNCTIONAL = ("supported_operators", "ordered_effects", "conjugate_numbers", "own_memory", "rename_operators")


def run_on_functional(gm: torch.fx.GraphModule) -> None:
    """Makes a graph of ATen's operators one of jaten's, if it writes to nothing and AOTAutograd has not made it."""
    rows = {row.name: row for row in PASSES if row.on is Stage.ATEN}
    for name in _ON_FUNCTIONAL:
        for inner in graphs_inside(gm) if rows[name].inside else ():
            rows[name].run(inner, GraphInfo())
        rows[name].run(gm, GraphInfo())


def _tell(row: Pass, gm: torch.fx.GraphModule, info: GraphInfo, before: str) -> str:
    after = text_of(gm)
    if after != before:
        _log.debug("%s graph after %s (%s)\n%s", info.kind, row.name, row.why, after)
    return after
