"""The styles of modules: how a plan places their parameters, inputs and results over an axis of the mesh.

The words are those of `torch.distributed.tensor.parallel` (`ColwiseParallel`, ...) and of the plans of Hugging Face's
transformers ("colwise", ...). Here a tensor is always the whole one, so a module with a style computes what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from ..errors import UnsupportedInputError


class WholeDim(NamedTuple):
    """A dimension of a value that no axis partitions."""

    dim: int


ValuePlaces = tuple[int | WholeDim, ...]
"""The dimensions of a value that the axis partitions one after the other; empty where the compiler may choose."""


@dataclass(frozen=True)
class Style:
    """A plan's entry for a module.

    Attributes:
        parameters: of each of the module's own parameters the dimension that the axis partitions; of those that are not
            named, none.
        inputs: the places of the module's first positional arguments.
        keywords: those of arguments by keyword.
        outputs: those of its results.
    """

    parameters: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[ValuePlaces, ...] = ()
    keywords: Mapping[str, ValuePlaces] = field(default_factory=dict)
    outputs: tuple[ValuePlaces, ...] = ()


def style_of(entry: Any, module: torch.nn.Module, name: str) -> Style:
    """The style of a module by a plan's entry: an object of torch's, or a word of Hugging Face's.

    Raises:
        UnsupportedInputError: an entry that is not known, or not for such a module.
    """
    if isinstance(entry, str):
        make = WORDS.get(entry)
        if make is None:
            raise UnsupportedInputError(f"the plan's entry for {name}", repr(entry), f"one of {', '.join(WORDS)}")
        return make(module, name)
    if isinstance(entry, Style):
        return entry
    for kind, read in _READERS.items():
        if type(entry) is kind:
            return read(entry, module, name)
    raise UnsupportedInputError(
        f"the plan's entry for {name}", repr(entry),
        "ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput or -Output, a word, or a PartitionSpec",
    )  # fmt: skip


def _dim(placement: Any) -> tuple[int, ...]:
    """The dimension that a placement of torch's shards. Where whole values are gathered, the compiler may choose."""
    return (int(placement.dim),) if placement is not None and placement.is_shard() else ()


def _dims(placements: Sequence[Any] | None, desired: Sequence[Any] | None = ()) -> tuple[tuple[int, ...], ...]:
    """The dimensions that placements shard, and then those of the desired ones."""
    pairs = zip_longest(placements or (), desired or ())
    return tuple(tuple(dict.fromkeys(_dim(one) + _dim(other))) for one, other in pairs)


def _columns(module: torch.nn.Module, name: str) -> dict[str, int]:
    """The dimension of the results in each parameter."""
    if isinstance(module, torch.nn.Embedding):
        return {"weight": 1}
    _require_matrix(module, name)
    return {"weight": _result_dim(module), "bias": 0}


def _rows(module: torch.nn.Module, name: str) -> dict[str, int]:
    """The dimension of what the module takes in each parameter: of a bias none."""
    if isinstance(module, torch.nn.Embedding):
        return {"weight": 0}
    _require_matrix(module, name)
    return {"weight": 1 - _result_dim(module)}


def _require_matrix(module: torch.nn.Module, name: str) -> None:
    if torch.nn.utils.parametrize.is_parametrized(module, "weight"):  # to read the weight would compute it
        raise UnsupportedInputError(
            f"the plan's entry for {name}",
            f"a parametrized {type(module).__name__}",
            f"a PartitionSpec for its parameters, such as {name}.parametrizations.weight.original",
        )
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2:
        raise UnsupportedInputError(
            f"the plan's entry for {name}",
            f"a {type(module).__name__}",
            "nn.Linear or nn.Embedding",
        )


def _result_dim(module: torch.nn.Module) -> int:
    """The dimension of a weight that its results have: in transformers' Conv1D it is the last."""
    return 1 if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else 0


def _colwise(entry: Any, module: torch.nn.Module, name: str) -> Style:
    return Style(_columns(module, name), outputs=_dims(entry.output_layouts))


def _rowwise(entry: Any, module: torch.nn.Module, name: str) -> Style:
    outputs = _dims(entry.output_layouts)
    if not isinstance(module, torch.nn.Embedding):
        return Style(_rows(module, name), _dims(entry.input_layouts), outputs=outputs)
    # the devices' parts of a result are summed first: for one that is partitioned at once, all rows would be gathered
    summed = tuple(tuple(place for dim in dims for place in (WholeDim(dim), dim)) for dims in outputs)
    return Style(_rows(module, name), outputs=summed)


def _sequence(entry: Any, module: torch.nn.Module, name: str) -> Style:
    dims = _dims(entry.sequence_sharding)
    return Style(inputs=dims, outputs=dims)


def _inputs(entry: Any, module: torch.nn.Module, name: str) -> Style:
    given = entry.input_kwarg_layouts or {}
    keywords = {k: _dims((given.get(k),), (v,))[0] for k, v in entry.desired_input_kwarg_layouts.items()}
    return Style(inputs=_dims(entry.input_layouts, entry.desired_input_layouts), keywords=keywords)


def _outputs(entry: Any, module: torch.nn.Module, name: str) -> Style:
    return Style(outputs=_dims(entry.output_layouts, entry.desired_output_layouts))


def _inputs_and_outputs(entry: Any, module: torch.nn.Module, name: str) -> Style:
    before = _inputs(entry.prepare_module_input, module, name)
    after = _outputs(entry.prepare_module_output, module, name)
    return Style(inputs=before.inputs, keywords=before.keywords, outputs=after.outputs)


_READERS: dict[type[ParallelStyle], Callable[[Any, torch.nn.Module, str], Style]] = {
    ColwiseParallel: _colwise,
    RowwiseParallel: _rowwise,
    SequenceParallel: _sequence,
    PrepareModuleInput: _inputs,
    PrepareModuleOutput: _outputs,
    PrepareModuleInputOutput: _inputs_and_outputs,
}

WORDS: dict[str, Callable[[torch.nn.Module, str], Style]] = {
    "colwise": lambda m, n: Style(_columns(m, n), outputs=((-1,),)),
    "packed_colwise": lambda m, n: Style(_columns(m, n)),
    "rowwise": lambda m, n: Style(_rows(m, n), () if isinstance(m, torch.nn.Embedding) else ((-1,),)),
    "sequence_parallel": lambda m, n: Style(inputs=((1,),), outputs=((1,),)),
    **dict.fromkeys(
        ("colwise_rep", "colwise_gather_output", "embedding_colwise"), lambda m, n: Style(_columns(m, n))
    ),
    **dict.fromkeys(
        ("rowwise_rep", "rowwise_split_input", "packed_rowwise", "embedding_rowwise"), lambda m, n: Style(_rows(m, n))
    ),
    **dict.fromkeys(
        (
            "replicate", "replicated_with_grad_allreduce", "all_reduce", "moe_tp_experts", "moe_identity_expert",
            "local_params", "mla_kv_a_proj", "ep_router", "ep_dispatch_experts",
        ),
        lambda m, n: Style(),
    ),
}  # fmt: skip
"""Hugging Face's words for modules. What they say of several processes, such as who gathers, the compiler decides."""

PARAMETER_WORDS: dict[str, int | None] = {
    "colwise": -2, "packed_colwise": -2, "colwise_rep": -2, "colwise_gather_output": -2,
    "rowwise": -1, "packed_rowwise": -1, "rowwise_rep": -1, "rowwise_split_input": -1,
    "embedding_rowwise": 0, "embedding_colwise": 1, "grouped_gemm": 0, "replicate": None, "local_params": None,
}  # fmt: skip
"""Their words for parameters, such as the matrices of all experts, (experts, results, inputs): the dimension."""
