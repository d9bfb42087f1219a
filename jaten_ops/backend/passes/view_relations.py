"""View relations, for autograd, among the inputs and outputs of a program on the device.

A compiled graph hands out tensors that share memory, and each has its own history: of a write to one by which it gets
a gradient the others would know nothing. Elsewhere AOTAutograd makes such outputs again as views; here that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jaten_ops.tensor.operand_values import shared_view
from jaten_ops.tensor.tensor import Tensor

from ..graph_info import GraphInfo, Relation
from ..nodes import captured_value


def with_relations(run: Callable[..., Any], found: Sequence[Relation]) -> Callable[..., Any]:
    """The function of a program, with outputs that are views where the program made them so."""
    if not found:
        return run

    def call(*args: Any) -> list[Any]:
        results = list(run(*args))
        for n, is_input, base in found:
            results[n] = _related(args[base] if is_input else results[base], results[n])
        return results

    return torch._dynamo.disable(call, reason="it is compiled")


def view_relations(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds those of Dynamo's graph, between tensors of the device."""
    outputs: Any = gm.graph.output_node().args[0]
    if not isinstance(outputs, Sequence):
        return info
    bases: dict[int, tuple[bool, int]] = {}
    for is_input, nodes in ((False, outputs), (True, gm.graph.find_nodes(op="placeholder"))):
        for n, node in enumerate(nodes):
            value = captured_value(node)
            if isinstance(value, Tensor) and value._base is None:
                bases[id(value)] = is_input, n
    found = []
    for n, node in enumerate(outputs):
        value = captured_value(node)
        base = bases.get(id(value._base)) if isinstance(value, Tensor) else None
        if base is not None:
            found.append(Relation(n, *base))
    return info.having(relations=found)


def _related(base: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A view of a tensor at a result's place in memory; the result itself, if autograd needs no view."""
    view, owner = shared_view(result), shared_view(base)
    if view is None or owner is None or view.storage is not owner.storage or result.dtype != base.dtype:
        return result
    if result.requires_grad != base.requires_grad or base.is_inference():
        return result
    return base.as_strided(view.shape, view.strides(), view.offset)
