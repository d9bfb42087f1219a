"""Dtypes and shapes of results: those that kernels give, where ATen's fake tensors have others.

The statistics of a norm are float32 on a CPU if its parameters are, whatever the input is. A mask to the power of True
or False is a mask. The losses of a single sample, not reduced, have no dimension. ATen's workspace of an LSTM is empty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from jaten_ops import registry

from ..graph_info import GraphInfo
from ..nodes import fake_value, is_higher_order, overload_of


def kernel_results(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Corrects such results in the nodes' metadata, and what is computed from them."""
    changed: set[torch.fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op != "call_function" or any(fake_value(n) is None for n in (node, *node.all_input_nodes)):
            continue
        is_after = not changed.isdisjoint(node.all_input_nodes)
        fake = node.target if is_after and not is_higher_order(node) else _own_fake(node)
        if fake is not None and _correct(node, fake):
            changed.add(node)
    return info


def _own_fake(node: torch.fx.Node) -> Any:
    """The fake of jaten's own of an ATen operator; None without one, and for operands of which both say the same."""
    key = overload_of(node.target)
    if key not in registry.FAKES or node.target.namespace != "aten":  # type: ignore[union-attr]  # it has an overload
        return None
    is_asked = _ASKED.get(key, _is_half)
    return registry.FAKES[key].fn if any(map(is_asked, node.all_input_nodes)) else None


def _is_half(node: torch.fx.Node) -> bool:
    value = fake_value(node)
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dtype.itemsize < 4


def _is_mask(node: torch.fx.Node) -> bool:
    value = fake_value(node)
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _is_single(node: torch.fx.Node) -> bool:
    value = fake_value(node)
    return isinstance(value, torch.Tensor) and value.dim() < 2


_ASKED = {
    "pow.Tensor_Scalar": _is_mask,
    "mkldnn_rnn_layer": lambda node: True,
    **dict.fromkeys(("multi_margin_loss", "multilabel_margin_loss_forward"), _is_single),
}
"""Operators beside those of half precision whose results a fake is asked for, each with the nodes in question."""


def _correct(node: torch.fx.Node, fake: Any) -> bool:
    """Gives a node the results that a fake says; returns whether they are others than it had."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with detect_fake_mode(tree_leaves((args, kwargs))) or torch.no_grad(), torch.no_grad():
        had, structure = tree_flatten(node.meta["val"])
        said = tree_leaves(fake(*args, **kwargs))
        if [*map(_form, had)] == [*map(_form, said)]:
            return False
        node.meta["val"] = tree_unflatten([*map(_corrected, had, said)], structure)
    return True


def _form(value: Any) -> Any:
    """The dtype and the shape, without sizes that are open."""
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, [size if isinstance(size, int) else None for size in value.shape]


def _corrected(had: Any, said: Any) -> Any:
    """A result as a fake says, in the memory order that it had."""
    if not isinstance(had, torch.Tensor) or _form(had) == _form(said):
        return had
    return torch.empty_like(had, dtype=said.dtype) if _form(had)[1] == _form(said)[1] else said
