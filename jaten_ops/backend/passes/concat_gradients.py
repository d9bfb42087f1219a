"""Concatenation of the gradients of parts of one tensor.

A program that takes a tensor apart, such as `x[:, t]` in a loop over time, has a gradient for each part. Autograd pads
each with zeros to the whole tensor, and adds these: for T parts it reads each element T times. Concatenating the parts
gives the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from jaten_ops.ops.namespace import operator_of

from ..graph_info import GraphInfo
from ..nodes import overload_of

_FEWEST = 3  # parts: with fewer, the sum of padded gradients is as fast


class _Part(NamedTuple):
    """A gradient of the elements from `start` to `stop` along a dimension; without that dimension, of one of them."""

    dim: int
    start: int
    stop: int
    grad: torch.fx.Node
    lacks_dim: bool


def concat_gradients(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Replaces sums of padded gradients of parts of a tensor by a concatenation of the parts."""
    for node in list(gm.graph.nodes):
        if not _is_sum(node) or (len(node.users) == 1 and _is_sum(next(iter(node.users)))):
            continue
        _assemble(gm.graph, node)
    return info


def _key(node: Any) -> str | None:
    return overload_of(node.target) if isinstance(node, torch.fx.Node) and node.op == "call_function" else None


def _value(node: Any) -> torch.Tensor | None:
    """The fake tensor of a node, if its sizes are known."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    known = isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)
    return value if known and isinstance(value, torch.Tensor) else None


def _is_sum(node: torch.fx.Node) -> bool:
    """True if a node adds two tensors of its own shape and dtype."""
    value = _value(node)
    if _key(node) != "add.Tensor" or node.kwargs or len(node.args) != 2 or value is None:
        return False
    terms = [_value(a) for a in node.args]
    return all(t is not None and t.shape == value.shape and t.dtype == value.dtype for t in terms)


def _terms(root: torch.fx.Node) -> list[torch.fx.Node]:
    """The terms of a sum, from left to right; a sum with other users is a term."""
    terms, left = [], [*reversed(root.args)]
    while left:  # no recursion, since there are as many sums as time steps
        term: Any = left.pop()
        if _is_sum(term) and len(term.users) == 1:
            left += reversed(term.args)
        else:
            terms.append(term)
    return terms


def _part_of(node: torch.fx.Node) -> _Part | None:
    key, value = _key(node), _value(node)
    if key not in ("select_backward", "slice_backward") or value is None or node.kwargs:
        return None
    arguments: Any = node.args
    grad, _, dim, *where = arguments
    if (
        not isinstance(grad, torch.fx.Node)
        or _value(grad) is None
        or not all(isinstance(n, int) for n in (dim, *where))
    ):
        return None
    size = value.shape[dim]
    dim %= value.dim()
    if key == "select_backward":
        return _Part(dim, where[0] % size, where[0] % size + 1, grad, True)
    start, stop, step = where
    start, stop, _ = slice(start, stop).indices(size)
    return _Part(dim, start, stop, grad, False) if step == 1 and start < stop else None


def _assemble(graph: torch.fx.Graph, root: torch.fx.Node) -> None:
    terms = _terms(root)
    parts = {term: part for term in dict.fromkeys(terms) if (part := _part_of(term)) is not None}
    dims = [part.dim for part in parts.values()]
    many = {dim for dim in dims if dims.count(dim) >= _FEWEST}
    taken = [term for term in terms if term in parts and parts[term].dim in many]
    if not taken:
        return
    with graph.inserting_before(root):
        sums = [term for term in terms if term not in taken]
        for dim in sorted(many):
            sums += _side_by_side(graph, root.meta["val"], dim, [parts[t] for t in taken if parts[t].dim == dim])
        total = sums[0]
        for term in sums[1:]:
            total = _call(graph, root.meta["val"], "add.Tensor", total, term)
    total.meta = root.meta
    root.replace_all_uses_with(total)
    _erase(graph, root)


def _call(graph: torch.fx.Graph, value: torch.Tensor, overload: str, *args: Any) -> torch.fx.Node:
    node = graph.call_function(operator_of(overload), args)
    node.meta["val"] = value
    return node


def _side_by_side(graph: torch.fx.Graph, whole: torch.Tensor, dim: int, parts: list[_Part]) -> list[torch.fx.Node]:
    """Tensors whose sum is that of the parts, each in zeros: as many as there are parts over each other."""

    def sized(size: int) -> torch.Tensor:
        return whole.new_empty([size if d == dim else n for d, n in enumerate(whole.shape)])

    found: dict[tuple[int, int], torch.fx.Node] = {}
    for part in parts:
        place, value = (part.start, part.stop), sized(part.stop - part.start)
        grad = _call(graph, value, "unsqueeze", part.grad, dim) if part.lacks_dim else part.grad
        found[place] = _call(graph, value, "add.Tensor", found[place], grad) if place in found else grad
    layers: list[list[tuple[int, int]]] = []
    for start, stop in sorted(found):
        free = next((layer for layer in layers if layer[-1][1] <= start), None)
        if free is None:
            layers.append(free := [])
        free.append((start, stop))
    size, tensors = whole.shape[dim], []
    for layer in layers:
        pieces, end = [], 0
        for start, stop in [*layer, (size, size)]:
            if end < start:
                zeros = sized(start - end)
                pieces.append(_call(graph, zeros, "new_zeros", found[layer[0]], list(zeros.shape)))
            if start < stop:
                pieces.append(found[start, stop])
            end = stop
        tensors.append(_call(graph, sized(size), "cat", pieces, dim))
    return tensors


def _erase(graph: torch.fx.Graph, root: torch.fx.Node) -> None:
    """Removes a sum, and its terms without other users."""
    left: list[Any] = [root]
    while left:
        node = left.pop()
        is_sum = _is_sum(node)
        if node.users or not (is_sum or _part_of(node) is not None):
            continue
        left += dict.fromkeys(node.args[:2]) if is_sum else ()
        graph.erase_node(node)
        node.meta = {}  # a term of another sum, too: then it is not a sum or part
