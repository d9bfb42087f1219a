"""Results of batch and group normalization as operators that are cheap to recompute from the statistics.

torch saves what a layer gives for the backward of the next one. Statistics are small and stay; the rest is a product
and a sum for each element, which the partitioner may have the backward graph compute again, if it sees that.

Running statistics have no part in that: in a backward graph they would be those from before the forward pass, which
writes to them. So the backward of a layer takes none, and a layer that activation checkpointing computes again is one
without.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode

from ..graph_info import GraphInfo
from ..layout import has_symbolic_size

_aten = torch.ops.aten
# the positions of weight, bias, and the flag for statistics of the batch
_BATCH: dict[Any, tuple[int, int, int]] = {
    _aten._native_batch_norm_legit_functional.default: (1, 2, 5),
    _aten.native_batch_norm.default: (1, 2, 5),
    _aten._native_batch_norm_legit.no_stats: (1, 2, 3),
}
_GROUP = _aten.native_group_norm.default
_WITHOUT_RUNNING = _aten._native_batch_norm_legit.no_stats
_BACKWARD = _aten.native_batch_norm_backward.default
_COMPUTED = (torch.float32, torch.float64)  # half precision types are normalized in float32


class _Writer:
    """Adds operators to a graph after a layer, with fake tensors and with the layer's other metadata."""

    def __init__(self, graph: torch.fx.Graph, layer: torch.fx.Node) -> None:
        self._graph, self._before = graph, layer.next
        self._meta = {k: v for k, v in layer.meta.items() if k not in ("val", "tensor_meta")}

    def __call__(self, op: Callable[..., Any], *args: Any) -> torch.fx.Node:
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(op, args)
        values = torch.fx.map_arg(args, lambda n: n.meta["val"])
        with detect_fake_mode(values) or torch.no_grad():
            node.meta = self._meta | {"val": op(*values)}
        return node


def recompute_norms(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Computes the results of such layers from their inputs and statistics, in a joint graph."""
    graph = gm.graph
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        before, (x, running, train) = node.args, (node.args[1].meta["val"], node.args[3:5], node.args[7])
        if train and x.dtype in _COMPUTED and running != (None, None):
            node.args = (*before[:3], None, None, *before[5:])
    for node in list(graph.nodes):
        if node.op != "call_function" or (node.target not in _BATCH and node.target is not _GROUP):
            continue
        x = node.args[0].meta["val"]
        parts = _parts(node)
        if parts and x.dtype in _COMPUTED and node.meta["val"][1].dtype == x.dtype and not has_symbolic_size(x):
            _rewrite(graph, node, parts)
    return info


def _parts(node: torch.fx.Node) -> dict[int, torch.fx.Node]:
    """The nodes that take the results of a layer, by index; none if there is nothing to gain."""
    found: dict[int, torch.fx.Node] = {}
    for user in node.users:
        if user.target is not operator.getitem or user.args[1] in found:
            return {}
        found[user.args[1]] = user  # type: ignore[index]  # it is a number
    is_apart = node.target is _GROUP or bool(node.args[_BATCH[node.target][2]])
    return found if 0 in found and is_apart else {}


def _rewrite(graph: torch.fx.Graph, node: torch.fx.Node, parts: dict[int, torch.fx.Node]) -> None:
    write = _Writer(graph, node)
    statistics: list[Any] = []
    source = _without_running(write, node) if "recompute" in node.meta else node
    for number in (1, 2):
        new = write(operator.getitem, source, number)
        if number in parts:
            parts[number].replace_all_uses_with(new)
            graph.erase_node(parts[number])
        statistics.append(new)
    by_group = node.target is _GROUP
    weight, bias = node.args[1:3] if by_group else [node.args[i] for i in _BATCH[node.target][:2]]
    spread = _of_groups if by_group else _of_channels
    mean, factor = (spread(write, s, node.args) for s in statistics)
    weight, bias = (None if p is None else _of_channels(write, p, node.args) for p in (weight, bias))
    if weight is not None:
        factor = write(_aten.mul.Tensor, factor, weight)
    result = write(_aten.mul.Tensor, write(_aten.sub.Tensor, node.args[0], mean), factor)
    if bias is not None:
        result = write(_aten.add.Tensor, result, bias)
    parts[0].replace_all_uses_with(result)
    result.meta = parts[0].meta | {"val": parts[0].meta["val"]}
    graph.erase_node(parts[0])


def _without_running(write: _Writer, layer: torch.fx.Node) -> torch.fx.Node:
    """A layer with the same statistics, which XLA computes once, without running statistics."""
    if layer.target in (_GROUP, _WITHOUT_RUNNING):
        return layer
    x, weight, bias, _, _, *settings = layer.args
    return write(_WITHOUT_RUNNING, x, weight, bias, *settings)


def _of_channels(write: _Writer, value: Any, args: Sequence[Any]) -> torch.fx.Node:
    """(C,) reshaped to broadcast to (N, C, *)."""
    _, channels, *inner = args[0].meta["val"].shape
    return write(_aten.view.default, value, [1, channels, *[1] * len(inner)])


def _of_groups(write: _Writer, value: Any, args: Sequence[Any]) -> torch.fx.Node:
    """(N, G) reshaped to broadcast to (N, C, *): a value for each channel."""
    n, channels, *inner = args[0].meta["val"].shape
    groups = args[6]
    each = write(
        _aten.expand.default, write(_aten.view.default, value, [n, groups, 1]), [n, groups, channels // groups]
    )
    return write(_aten.view.default, write(_aten.clone.default, each), [n, channels, *[1] * len(inner)])
