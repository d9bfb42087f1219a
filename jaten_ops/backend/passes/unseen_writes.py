"""Writes to inputs under `torch.no_grad` or through `detach`, which autograd does not see.

AOTAutograd returns the new value of such an input from the forward graph as if it were a result, of which the input is
an operand: its gradient, always zeros, would be the input's, where a call that is not compiled leaves None.
"""

from __future__ import annotations

from typing import Any

import torch

from ..graph_info import GraphInfo
from ..nodes import fake_value


def unseen_writes(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Returns None from a backward graph for inputs of which nothing but such a new value has a gradient.

    A write through `detach()` is seen by none of a leaf's views, but of another tensor by those that come later. So
    it is noted, and decided when the graph is called.
    """
    if not info.is_backward or info.metadata is None or info.forward is None:
        return info
    given = info.forward.inputs
    infos = [i for i, v in zip(info.metadata.input_info, given, strict=False) if isinstance(v, torch.Tensor)]
    if len(given) != len(info.metadata.input_info) or len(infos) != len(info.asked):
        return info
    written = [
        (edge, i.mutations_under_no_grad_or_inference_mode or i.mutations_hidden_from_autograd)
        for edge, (i, is_asked) in enumerate(zip(infos, info.asked, strict=True))
        if i.mutation_type.name == "MUTATED_OUT_GRAPH" and i.mutates_data and is_asked
    ]
    tangents = [n for n in gm.graph.find_nodes(op="placeholder") if n.name.startswith("tangents")]
    of_new_values = dict(zip(tangents, written, strict=False))  # they come first
    output = gm.graph.output_node()
    gradients: Any = output.args[0]
    found = {i: of_new_values[g] for i, g in enumerate(gradients) if g in of_new_values}
    unseen = {i for i, (_, is_unseen) in found.items() if is_unseen}
    if unseen:
        output.args = (tuple([None if i in unseen else g for i, g in enumerate(gradients)]),)
        gm.recompile()
    return info.having(
        unseen=frozenset(i for i in unseen if fake_value(gradients[i]).device.type == "jax"),
        unseen_of_leaves={i: (edge, len(infos)) for i, (edge, is_unseen) in found.items() if not is_unseen},
    )
