"""Writes to inputs under `torch.no_grad`, which autograd does not see.

AOTAutograd returns the new value of such an input from the forward graph as if it were a result, of which the input is
an operand: its gradient, always zeros, would be the input's, where a call that is not compiled leaves None. On the
device it stays zeros: there AOTAutograd makes a tensor of the device of each gradient that its trace has.
"""

from __future__ import annotations

from typing import Any

import torch

from ..graph_info import GraphInfo


def unseen_writes(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Returns None from a backward graph for inputs of which nothing but such a new value has a gradient."""
    if not info.is_backward or info.metadata is None:
        return info
    tangents = [n for n in gm.graph.find_nodes(op="placeholder") if n.name.startswith("tangents")]
    is_unseen = [
        i.mutations_under_no_grad_or_inference_mode
        for i in info.metadata.input_info
        if i.mutation_type.name == "MUTATED_OUT_GRAPH" and i.mutates_data and i.requires_grad
    ]
    # the tangents of new values come first; of carriers, those of the device, none requires a gradient
    unseen = {tangent for tangent, is_so in zip(tangents, is_unseen, strict=False) if is_so}
    output = gm.graph.output_node()
    gradients: Any = output.args[0]
    if unseen.intersection(gradients):
        output.args = (tuple([None if g in unseen else g for g in gradients]),)
        gm.recompile()
    return info
