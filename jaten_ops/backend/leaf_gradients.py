"""Gradients of the device's parameters, put in place by the backward graph that has computed them.

torch's engine would hand each to a node of its own, which makes another tensor of it and then the parameter's `.grad`.
That takes longer than a small program. Where nobody could see the difference the gradient becomes `.grad` at once, and
the engine is told that there is none.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import torch

from jaten_ops.arrays import partitioned
from jaten_ops.arrays.observers import OBSERVERS
from jaten_ops.device.autograd_engine import PASS
from jaten_ops.tensor.tensor import PUT_IN_PLACE, Tensor
from jaten_ops.tracing import opaque


@opaque
def put_in_place(gradients: list[Any]) -> None:
    """Makes gradients the `.grad` of leaves that have none, and `PUT_IN_PLACE` what stands in the list.

    Args:
        gradients: what a backward graph returns: for each input of its forward graph a tensor or None.
    """
    if not PASS.accumulates or OBSERVERS or partitioned.MET or torch.is_grad_enabled() or torch.is_anomaly_enabled():
        return
    node = torch._C._current_autograd_node()
    edges = () if node is None else node.next_functions
    if len(edges) != len(gradients):  # an entry without edge, as a number
        return
    for i, gradient in enumerate(gradients):
        if type(gradient) is not Tensor:
            continue
        after = edges[i][0]
        # who else holds the node may have given it hooks, which are told of gradients
        leaf = getattr(after, "variable", None) if sys.getrefcount(after) <= _of_one_owner() else None
        if type(leaf) is Tensor and _takes(leaf):
            try:
                leaf.grad = gradient
            except RuntimeError:  # it does not fit: torch's engine converts it, or says so
                continue
            gradients[i] = PUT_IN_PLACE


@opaque
def without_writes(gradients: list[Any], written: Mapping[int, tuple[int, int]]) -> None:
    """Takes gradients out of the list that leaves have of their new values alone: autograd has not seen the writes.

    Args:
        gradients: as above.
        written: the places of gradients of new values alone, with the number of the edge, and of all edges.
    """
    node = torch._C._current_autograd_node()
    edges = () if node is None else node.next_functions
    for i, (edge, count) in written.items():
        if len(edges) == count and hasattr(edges[edge][0], "variable"):
            gradients[i] = PUT_IN_PLACE if gradients[i].device.type == "jax" else None


def _takes(leaf: torch.Tensor) -> bool:
    """True if torch would make a contiguous gradient the leaf's as it is, and tell nobody."""
    return (
        leaf.grad is None
        and not leaf._backward_hooks
        and not leaf._post_accumulate_grad_hooks  # type: ignore[attr-defined]  # torch's stubs lack it
        and leaf.requires_grad
        and leaf.is_contiguous()
    )


@functools.cache
@opaque
def _of_one_owner() -> int:
    """The number of references that Python counts to a leaf's node that only the graph holds, asked as above."""
    with torch.inference_mode(False), torch.enable_grad():  # whatever holds where it is asked first
        result = torch.ones((), requires_grad=True, device="cpu") * 2
    node: Any = result.grad_fn
    edges = node.next_functions
    after = edges[0][0]
    return sys.getrefcount(after)
