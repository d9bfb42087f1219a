"""Outputs that AOTAutograd recreates from the tensor that owns their memory; `output_views` handles the others.

With fixed sizes it calls the views again. With dynamic sizes it reads sizes, strides and offset from the output, but an
executable's own results always start at their memory. From torch 2.15 on it counts the offset from where the owner
starts, unless the output is in the owner's memory already: hence results that are to be views of inputs are put there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType  # private to torch; a test fails without it

from ..graph_info import GraphInfo, MemoryStart
from ..layout import concretize, expressions_of, geometry_of, symbols_of
from ..nodes import fake_value
from ..view_calls import Run

MADE_AGAIN = (
    OutputType.alias_of_input,
    OutputType.alias_of_intermediate,
    OutputType.alias_of_intermediate_save_as_output,
    OutputType.alias_of_intermediate_base_is_user_output,
)
"""The kinds of outputs that AOTAutograd recreates from the owner of their memory, unless they are on the device."""


def output_offsets(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds the offsets of a forward graph that are not 0 and depend on nothing but the inputs' geometry."""
    if info.is_backward or info.metadata is None:
        return info
    inputs = [fake_value(node) for node in gm.graph.find_nodes(op="placeholder")]
    outputs: Any = gm.graph.output_node().args[0]
    known = {s for s in expressions_of(chain.from_iterable(map(geometry_of, inputs))) if s.is_symbol}
    found = {}
    for n, told in enumerate(info.metadata.output_info, info.metadata.num_mutated_inp_runtime_indices):
        value = fake_value(outputs[n])
        if told.output_type not in MADE_AGAIN or not isinstance(value, torch.Tensor) or value.device.type == "jax":
            continue
        base = told.base_idx if told.output_type is OutputType.alias_of_input else None
        offset = value.storage_offset() if base is None else _offset_in(value, inputs[base])
        symbols = {s for e in expressions_of([offset]) for s in e.free_symbols}
        if (
            symbols or offset
        ) and symbols <= known:  # one that depends on a value is a view in memory: see `data_dependent_splits`
            found[n] = MemoryStart(base, offset)
    return info.having(offsets=found)


def _offset_in(view: torch.Tensor, owner: torch.Tensor) -> Any:
    """The offset of a view in its owner's memory; after a write, the view is one of the owner's new value."""
    if view.untyped_storage()._cdata == owner.untyped_storage()._cdata:
        return view.storage_offset()
    return owner.storage_offset() + view.storage_offset()


def with_offsets(run: Run, values: Sequence[Any], offsets: Mapping[int, MemoryStart]) -> Run:
    """The function of a forward graph with outputs that have their offsets, if AOTAutograd reads them.

    Args:
        run: what computes the outputs.
        values: what the graph knows of its inputs.
        offsets: by the number of the output where it starts.
    """
    if not offsets:
        return run
    found: dict[tuple[Any, ...], list[tuple[int, int | None, int]]] = {}

    def call(args: list[Any]) -> list[Any]:
        key = tuple([n for a in args for n in geometry_of(a)])
        at = found.get(key)
        if at is None:
            symbols = symbols_of([n for v in values for n in geometry_of(v)], key)
            at = found[key] = [(n, base, concretize(offset, symbols)) for n, (base, offset) in offsets.items()]
        owners = [(n, None if base is None else args[base], offset) for n, base, offset in at]
        results = run(args)  # it empties the list
        for n, owner, offset in owners:
            results[n] = _at(results[n], owner, offset)
        return results

    return call


def _at(tensor: torch.Tensor, owner: torch.Tensor | None, offset: int) -> torch.Tensor:
    """A tensor with another's dtype, sizes and strides, and an offset: in its owner's memory, or a meta tensor."""
    size, stride = tensor.shape, tensor.stride()
    with torch.no_grad():
        if owner is not None:
            empty, memory = torch.empty(0, dtype=tensor.dtype, device=owner.device), owner.untyped_storage()
        else:
            extent = offset + (sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 if tensor.numel() else 0)
            empty = torch.empty(extent, dtype=tensor.dtype, device="meta")
            memory = empty.untyped_storage()
        return empty.set_(memory, offset, size, stride)  # type: ignore[call-overload]  # it takes these
