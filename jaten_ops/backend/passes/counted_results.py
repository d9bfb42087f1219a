"""Results of forward passes in the number that AOTAutograd has counted, by which it takes them apart.

A tensor of the device is several results: its carrier, and those of its sizes and strides that are open. AOTAutograd
counts them in a trace of its own, before that of the graph. There the count may be another: a size that is fixed later,
as by a backward pass, is open no more, and the new value of an input lies as results do, not as the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from jaten_ops.errors import UnsupportedInputError

from ..graph_info import GraphInfo
from ..nodes import whole_description


class SizesAreFixedError(UnsupportedInputError):
    """The trace of a graph has fixed sizes. In another they are fixed from the start."""

    def __init__(self) -> None:
        super().__init__(
            "a compiled function on the device",
            "open sizes that are fixed one after the other",
            "fixed sizes: compile with dynamic=False",
        )


def counted_results(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Has new values of inputs lie as the inputs, if the number of the forward's results is not as counted.

    The graph is one of forward and backward, or one for inference; others are parts of the former.

    Raises:
        SizesAreFixedError: it is another for another reason.
    """
    given: list[Any] = gm.graph.output_node().meta.get("desc") or []
    if not any(hasattr(d, "base") for d in given):  # no result is a part of a tensor of the device
        return info
    if info.kind == "joint":
        _count_forward(gm, given, info.forward_results)
    elif info.kind == "inference" and info.metadata is not None and _programs(given) != len(info.metadata.output_info):
        raise SizesAreFixedError
    return info


def _programs(descriptions: Iterable[Any]) -> int:
    """The number of results that the program returns, apart from new values of inputs, and what others are views of."""
    return sum(type(whole_description(d)).__name__ == "PlainAOTOutput" for d in descriptions)


def _count_forward(joint: torch.fx.GraphModule, given: Sequence[Any], expected: int) -> None:
    count = next((i for i, d in enumerate(given) if _is_of_gradient(d)), len(given))
    if count == expected:
        return
    output = joint.graph.output_node()
    results = tree_leaves(output.args[0], is_leaf=lambda x: x is None)
    forward = _lying_as_inputs(joint, results[:count], given[:count])
    if len(forward) != expected:
        raise SizesAreFixedError
    output.args = ([*[node for node, _ in forward], *results[count:]],)
    output.meta["desc"] = [*[d for _, d in forward], *given[count:]]
    joint.recompile()


def _is_of_gradient(description: Any) -> bool:
    """True for AOTAutograd's description of a gradient, or of None in place of one."""
    whole = whole_description(description)
    return whole is None or hasattr(whole, "grad_of")


def _lying_as_inputs(joint: torch.fx.GraphModule, results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Results with their descriptions, the open strides of new values of inputs replaced by those of the inputs."""
    strides: dict[Any, list[Any]] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        described = node.meta.get("desc")
        if _is_stride(described):
            strides.setdefault(described.base, []).append((node, described))
    found: list[Any] = []
    for n, (result, description) in enumerate(zip(results, given, strict=True)):
        whole = whole_description(description)
        written = getattr(whole, "mutated_input", None)
        if written is None or not (_is_stride(description) and description.base == whole):
            found.append((result, description))
        if written is not None and (n + 1 == len(given) or whole_description(given[n + 1]) != whole):
            found += strides.get(written, [])
    return found


def _is_stride(description: Any) -> bool:
    return type(description).__name__.startswith("SubclassStride")
