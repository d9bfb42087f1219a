"""The inputs that a program writes to, for calls whose inputs share memory (see `aliased_inputs`)."""

from __future__ import annotations

import torch

from ..graph_info import GraphInfo


def written_inputs(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds these among the inputs that are tensors, by AOTAutograd's account of a forward graph."""
    infos = [] if info.is_backward or info.metadata is None else info.metadata.input_info
    if len(infos) != len(info.inputs):
        return info
    of_tensors = [told for told, v in zip(infos, info.inputs, strict=True) if isinstance(v, torch.Tensor)]
    return info.having(written=frozenset(n for n, told in enumerate(of_tensors) if told.mutates_data))
