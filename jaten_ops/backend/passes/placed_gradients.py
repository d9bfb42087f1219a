"""Gradients over a mesh: each is placed within the backward graph as its parameter is.

The hook that places it stands behind the graph, in which the compiler would be free to make all of it on each device.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from jaten_ops.tensor.mesh_methods import gradient_layout

from ..graph_info import GraphInfo
from ..nodes import fake_value


def gradient_layouts(gm: torch.fx.GraphModule) -> list[str | None]:
    """For each input of Dynamo's graph the text of the layout in which its gradients are to be; else None."""
    found: list[str | None] = []
    for node in gm.graph.find_nodes(op="placeholder"):
        tensor = getattr(node.meta.get("grapharg"), "example", None)
        found.append(gradient_layout(tensor) if isinstance(tensor, torch.Tensor) else None)
    return found


def placed_gradients(joint: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Places gradients in a graph of forward and backward; see `GraphInfo.gradient_layouts`."""
    layouts, output = info.gradient_layouts, joint.graph.output_node()
    leaves = tree_leaves(output.args[0])
    results, gradients = leaves[: info.forward_results], leaves[info.forward_results :]
    if not any(layouts) or len(gradients) != len(layouts):  # AOTAutograd has merged inputs: the hook alone has to do
        return info
    placed = {}
    with joint.graph.inserting_before(output):
        for gradient, layout in zip(gradients, layouts, strict=True):
            if layout is not None and isinstance(gradient, torch.fx.Node) and gradient not in placed:
                operator = torch.ops.jaten_distributed.constrain.default
                placed[gradient] = joint.graph.call_function(operator, (gradient, layout))
                placed[gradient].meta.update(gradient.meta, val=fake_value(gradient).contiguous())
    output.args = ([*results, *[placed.get(g, g) for g in gradients]],)
    joint.recompile()
    return info
