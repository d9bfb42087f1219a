"""Results of a graph of forward and backward in the number that AOTAutograd has counted, by which it parts them.

A tensor of the device is several results: its carrier, and those of its sizes and strides that are open. AOTAutograd
counts the forward's in a trace of its own, before that of forward and backward. There the count may be another: a size
that a backward pass fixes is open no more, and the new value of an input lies as results do, not as the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from jaten_ops.errors import UnsupportedInputError

from ..graph_info import GraphInfo


class SizesAreFixedError(UnsupportedInputError):
    """The trace of a backward pass has fixed sizes. In another they are fixed from the start."""

    def __init__(self) -> None:
        super().__init__(
            "a compiled function on the device",
            "open sizes that its backward pass fixes one after the other",
            "fixed sizes: compile with dynamic=False",
        )


def counted_results(joint: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Has new values of inputs lie as the inputs, if the number of the forward's results is not as counted.

    Raises:
        SizesAreFixedError: it is another for another reason.
    """
    output = joint.graph.output_node()
    given: list[Any] = output.meta.get("desc") or []
    if not any(hasattr(d, "base") for d in given):  # no result is a part of a tensor of the device
        return info
    count = next((i for i, d in enumerate(given) if _is_of_gradient(d)), len(given))
    if count == info.forward_results:
        return info
    results = tree_leaves(output.args[0], is_leaf=lambda x: x is None)
    forward = _lying_as_inputs(joint, results[:count], given[:count])
    if len(forward) != info.forward_results:
        raise SizesAreFixedError
    output.args = ([*[node for node, _ in forward], *results[count:]],)
    output.meta["desc"] = [*[d for _, d in forward], *given[count:]]
    joint.recompile()
    return info


def _is_of_gradient(description: Any) -> bool:
    """True for AOTAutograd's description of a gradient, or of None in place of one."""
    while hasattr(description, "base"):
        description = description.base
    return description is None or hasattr(description, "grad_of")


def _lying_as_inputs(joint: torch.fx.GraphModule, results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Results with their descriptions, the open strides of new values of inputs replaced by those of the inputs."""
    strides: dict[Any, list[Any]] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        described = node.meta.get("desc")
        if _is_stride(described):
            strides.setdefault(described.base, []).append((node, described))
    found: list[Any] = []
    for n, (result, description) in enumerate(zip(results, given, strict=True)):
        written = getattr(getattr(description, "base", None), "mutated_input", None)
        if written is None or not _is_stride(description):
            found.append((result, description))
        is_last = n + 1 == len(given) or getattr(given[n + 1], "base", None) != getattr(description, "base", None)
        if written is not None and is_last:
            found += strides.get(written, [])
    return found


def _is_stride(description: Any) -> bool:
    return type(description).__name__.startswith("SubclassStride")
