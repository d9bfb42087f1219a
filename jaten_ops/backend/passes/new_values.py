"""Outputs that are new values of inputs, which AOTAutograd puts before what the program returns."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import PlainTensorMeta

from ..graph_info import GraphInfo
from ..nodes import fake_value

# since torch 2.15 AOTAutograd returns those of the inner tensor, too
_TIMES = 2 if hasattr(PlainTensorMeta, "size_symbol_placeholders") else 1


def new_values(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds for each the number of the input, and where the outputs of the program begin.

    Behind a tensor of the device stand those of its sizes and strides that are not known. Where writes to inputs come
    first, as `input_writes` has it, there are no such outputs.
    """
    place = len(info.writes)
    if info.is_backward or info.metadata is None:
        return info.having(first_result=place)
    infos, found = info.metadata.input_info, {}
    known = len(infos) == len(gm.graph.find_nodes(op="placeholder"))
    outputs: Any = gm.graph.output_node().args[0]
    for i in info.metadata.mutated_inp_runtime_indices:
        if known and infos[i].mutates_data and not infos[i].mutates_metadata:
            found[place] = i
        value = fake_value(outputs[place])
        on_device = isinstance(value, torch.Tensor) and value.device.type == "jax"
        sizes = [*value.shape, *value.stride()] if on_device and isinstance(value, torch.Tensor) else []
        place += 1 + _TIMES * sum(isinstance(n, torch.SymInt) for n in sizes)
    return info.having(first_result=place, new_values={} if info.writes else found)
