"""`GraphInfo`, the facts about a graph besides its nodes: each pass reads it, and returns it with its own findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from jaten_ops.xla import autotune_mode

from .view_calls import Views

Kind = Literal["captured", "joint", "forward", "backward", "inference"]


class Relation(NamedTuple):
    """An output that is a view, as autograd is to know it.

    Attributes:
        output: its number.
        of_input: whether it is a view of an input, or of another output.
        base: the number of that.
    """

    output: int
    of_input: bool
    base: int


class MemoryStart(NamedTuple):
    """The place in memory at which an output starts.

    Attributes:
        input: the number of the input whose memory it is; None if it is the memory of another output.
        offset: the place.
    """

    input: int | None
    offset: Any


class InputWrite(NamedTuple):
    """A write to an input that AOTAutograd has left in a graph.

    Attributes:
        input: its number.
        write: writes a value to its tensor.
    """

    input: int
    write: Callable[[torch.Tensor, torch.Tensor], Any]


@dataclass(frozen=True)
class PartialWrite:
    """An input with a new part.

    Attributes:
        input: its number.
        donated: whether it gives its array away, so that all of the new value is in it.
        given: what says where and what the new part is: numbers of inputs, and nodes that are computed.
        write: takes the input's tensor and what these are, and writes.
    """

    input: int
    donated: bool
    given: Sequence[int | torch.fx.Node]
    write: Callable[..., None]

    @property
    def computed(self) -> list[torch.fx.Node]:
        return [g for g in self.given if isinstance(g, torch.fx.Node)]


@dataclass(frozen=True, eq=False)
class GraphInfo:
    """Facts about a graph. A field that no pass has filled yet has its default.

    Attributes:
        kind: which graph it is: Dynamo's, forward and backward in one, or one of those that AOTAutograd has compiled.
        autotune: which operations are measured when it is compiled; None for what holds in the process.
        inputs: what the graph is captured for; without AOTAutograd's tokens.
        input_strides: of the inputs of a forward graph those that the program's tensors have, where carriers are
            row-major; None where there are none, or they may change.
        metadata: AOTAutograd's account of the forward graph; None where it gives none.
        asked: which of the program's tensors require gradients, in the order of inputs; carriers do not.
        forward: of a backward graph what is known of the forward graph.
        gradient_layouts: of a graph of forward and backward, by input, the text of the layout over a mesh in which its
            gradient is to be; None where there is none.
        forward_results: of such a graph how many outputs come before the gradients.
        relations: the outputs of Dynamo's graph that are views of others on the device (`view_relations`).
        is_wrapped: whether results or gradients were made tensors of the device (`wrapped_results`).
        replaces_memory: whether the program gives tensors other memory (`replaced_memory`).
        written: which of the inputs that are tensors the program writes to; None if torch does not say
            (`written_inputs`).
        offsets: by the number of the output where it starts in its memory (`output_offsets`).
        writes: those to inputs that come first among the results (`input_writes`).
        static_inputs: the numbers of inputs that keep their memory from call to call (`static_inputs`).
        static_names: their names in the forward graph.
        first_result: the number of the first output that the program returns (`new_values`).
        new_values: for outputs that are new values of inputs the number of the input.
        seen: how many of the outputs the user may see; None for all (`output_views`).
        views: how the outputs become of the results, if they are not these.
        result_strides: by number those of results on the device that are not row-major (`device_strides`).
        parts: the number of the part of each node, where a graph is cut; else None (`data_dependent_splits`).
        numbers: inputs that are handed over as numbers (`traced_ints`).
        partial_writes: for outputs that are new values of inputs of which a part is new (`partial_writes`).
        unseen: of a backward graph the gradients on the device that are None (`unseen_writes`).
        unseen_of_leaves: those that are None where the input is a leaf, with its number among the tensors, and theirs.
    """

    kind: Kind = "captured"
    autotune: autotune_mode.AutotuneMode | None = None
    inputs: Sequence[Any] = ()
    input_strides: Sequence[tuple[int, ...] | None] = ()
    metadata: Any = None
    asked: Sequence[bool] = ()
    forward: GraphInfo | None = None
    gradient_layouts: Sequence[str | None] = ()
    forward_results: int = 0
    relations: Sequence[Relation] = ()
    is_wrapped: bool = False
    replaces_memory: bool = False
    written: frozenset[int] | None = None
    offsets: Mapping[int, MemoryStart] = field(default_factory=dict)
    writes: Sequence[InputWrite] = ()
    static_inputs: frozenset[int] = frozenset()
    static_names: frozenset[str] = frozenset()
    first_result: int = 0
    new_values: Mapping[int, int] = field(default_factory=dict)
    seen: int | None = None
    views: Views | None = None
    result_strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    parts: Mapping[torch.fx.Node, int] | None = None
    numbers: frozenset[torch.fx.Node] = frozenset()
    partial_writes: Mapping[int, PartialWrite] = field(default_factory=dict)
    unseen: frozenset[int] = frozenset()
    unseen_of_leaves: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_backward(self) -> bool:
        return self.kind == "backward"

    def having(self, **found: Any) -> GraphInfo:
        """The same with what a pass has found."""
        return dataclasses.replace(self, **found)

    def kept(self) -> GraphInfo:
        """The facts that a call of the graph needs in another process, as plain data."""
        return GraphInfo(
            self.kind,
            self.autotune,
            written=self.written,
            static_inputs=self.static_inputs,
            new_values=dict(self.new_values),
            seen=self.seen,
            views=self.views,
            result_strides=self.result_strides,
            unseen=self.unseen,
            unseen_of_leaves=dict(self.unseen_of_leaves),
        )
