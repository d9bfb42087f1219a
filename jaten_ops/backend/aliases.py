"""Outputs that lie in the memory of an input or of another output.

On the device `jax` they are what the views make of the input, and no results of the executable. Elsewhere AOTAutograd
makes them again from the tensor that owns the memory. With fixed sizes it calls the views again; with sizes that change
it asks the output where it lies, its offset included, of which an executable's own results know nothing: they start at
their memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType  # private to torch; a test fails without it
from torch._guards import TracingContext

from jaten_ops import carrier
from jaten_ops.meta import aten_overload
from jaten_ops.view_ops import is_view, views

from .layout import concretize, symbols_of
from .targets import overload_of

_MADE_AGAIN = (
    OutputType.alias_of_input,
    OutputType.alias_of_intermediate,
    OutputType.alias_of_intermediate_save_as_output,
    OutputType.alias_of_intermediate_base_is_user_output,
)
Run = Callable[[list[Any]], list[Any]]
_Step = tuple[torch._ops.OpOverload, Any, Any, int | None]


@dataclass(frozen=True)
class Path:
    """How an output lies in an input.

    Attributes:
        input: the number of the input.
        steps: the view operators from there on, with their other arguments, and which of their results is meant.
    """

    input: int
    steps: tuple[_Step, ...]

    def follow(self, symbols: dict[Any, int]) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes the output, a carrier, of the input's, for given values of the graph's symbols."""
        steps = [
            (func, *torch.fx.node.map_arg((args, kwargs), lambda n: concretize(n.meta["val"], symbols)), item)
            for func, args, kwargs, item in self.steps
        ]

        def view(tensor: torch.Tensor) -> torch.Tensor:
            found, dtype = carrier.view_of(tensor), tensor.dtype
            for func, args, kwargs, item in steps:
                result = views(func, found, dtype, args, kwargs)
                found, dtype = result if item is None else result[item]
            return carrier.of(found)

        return view


def path_of(node: Any, inputs: dict[torch.fx.Node, int], numbers: Collection[torch.fx.Node]) -> Path | None:
    """How an output lies in an input; None if it does not, or where one of these numbers says, which are operands."""
    steps: list[_Step] = []
    free = set(_expressions(n.meta["val"] for n in numbers))
    while node not in inputs:
        item = None
        if getattr(node, "target", None) is operator.getitem:
            node, item = node.args
        overload = overload_of(node.target) if isinstance(node, torch.fx.Node) else None
        func = None if overload is None else aten_overload(overload)
        # of memory that a graph sees row-major, as_strided reads other elements
        if func is None or not is_view(func) or func is torch.ops.aten.as_strided.default:
            return None
        if any(free & e.free_symbols for e in _expressions(n.meta["val"] for n in node.all_input_nodes[1:])):
            return None
        steps.append((func, node.args[1:], node.kwargs, item))
        node = node.args[0]
    return Path(inputs[node], tuple(reversed(steps)))


def placed(gm: torch.fx.GraphModule, run: Run) -> Run:
    """The function of a forward graph's inputs whose outputs tell where they lie, if AOTAutograd is to ask that."""
    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    outputs: Any = gm.graph.output_node().args[0]
    offsets = _offsets(outputs, values)
    if not offsets:
        return run
    found: dict[tuple[Any, ...], list[tuple[int, int]]] = {}

    def call(args: list[Any]) -> list[Any]:
        key = tuple([n for a in args for n in _geometry(a)])
        at = found.get(key)
        if at is None:
            symbols = symbols_of([n for v in values for n in _geometry(v)], key)
            at = found[key] = [(n, concretize(offset, symbols)) for n, offset in offsets.items()]
        results = run(args)
        for n, offset in at:
            results[n] = _at(results[n], offset)
        return results

    return call


def _offsets(outputs: Sequence[Any], inputs: Sequence[Any]) -> dict[int, Any]:
    """The offsets, by the number of the output, that are not 0 and depend on nothing but the inputs' geometry."""
    context = TracingContext.try_get()
    info = None if context is None else context.fw_metadata
    if info is None:
        return {}
    known = {s for s in _expressions(chain.from_iterable(map(_geometry, inputs))) if s.is_symbol}
    found = {}
    for n, output in enumerate(info.output_info, info.num_mutated_inp_runtime_indices):
        value = outputs[n].meta.get("val") if isinstance(outputs[n], torch.fx.Node) else None
        if output.output_type not in _MADE_AGAIN or not isinstance(value, torch.Tensor) or value.device.type == "jax":
            continue
        offset = value.storage_offset()
        symbols = {s for e in _expressions([offset]) for s in e.free_symbols}
        if (symbols or offset) and symbols <= known:  # one that depends on a value is a view in memory: see segments
            found[n] = offset
    return found


def _geometry(value: Any) -> tuple[Any, ...]:
    """Sizes, strides and offset of a tensor; a number alone."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, *value.stride(), value.storage_offset())
    return (value,)


def _expressions(numbers: Iterable[Any]) -> list[Any]:
    return [n.node.expr for n in numbers if isinstance(n, torch.SymInt)]


def _at(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """What has a tensor's dtype, sizes and strides, and an offset: only these are looked at."""
    size, stride = tensor.shape, tensor.stride()
    extent = offset + (sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 if tensor.numel() else 0)
    with torch.no_grad():
        whole = torch.empty(extent, dtype=tensor.dtype, device="meta")
        return whole.set_(whole.untyped_storage(), offset, size, stride)  # type: ignore[call-overload]  # it takes these
