"""Determinants, whose gradients are of the factors that ATen keeps: of the matrix as it lies in memory."""

from __future__ import annotations

import torch

from ..graph_info import GraphInfo

_aten = torch.ops.aten
_DETERMINANTS = (_aten._linalg_det.default, _aten._linalg_slogdet.default)


def stored_factors(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Gives each the transpose of a real matrix that is not row-major: kernels take matrices as row-major ones.

    ATen factors the transpose of one that is, and its gradients ask for that.
    """
    for target in _DETERMINANTS:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            (matrix,) = node.args
            value = matrix.meta["val"]
            if value.is_contiguous() or value.is_complex():
                continue
            with gm.graph.inserting_before(node):
                turned = gm.graph.call_function(_aten.transpose.int, (matrix, -2, -1))
            turned.meta = node.meta | {"val": value.transpose(-2, -1)}
            node.args = (turned,)
    return info
