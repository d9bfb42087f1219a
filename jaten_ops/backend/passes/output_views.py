"""Outputs that share the memory of an input or another output, created as views of it.

An executable's results lie each by itself. Of outputs that share memory AOTAutograd makes some again, by the tensor
that owns it, but not those that need no gradient, nor the parts of a tensor that is taken apart, and none on the
device, where it sees no memory. Of these the graph returns the owner alone, and their views are called on that. So they
are of large outputs that are saved for the backward, as a softmax is. And so they are, as in ATen's own backward, of
large gradients that are parts of one that comes in, as those of what is concatenated.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch.utils import _pytree as pytree

from jaten_ops.arrays.view_ops import is_view

from ..graph_info import GraphInfo
from ..layout import expressions_of, geometry_of, strided_layout_of
from ..nodes import fake_value, is_jax_node, overload_of
from ..view_calls import DETACH, ITEM, NumberRef, ViewCall, Views
from .output_offsets import MADE_AGAIN

_Call = tuple[str, tuple[Any, ...]]
_LEAST_SAVED = 2**16  # bytes: to copy fewer takes no longer than to call a view


def output_views(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Has a graph return the owners of memory in the place of outputs that are views of them.

    The outputs beyond those that the program returns, and owners of memory of which AOTAutograd makes others again, are
    saved for the backward: the user sees none of them.
    """
    if info.is_backward:
        return info.having(views=_gradient_views(gm.graph))
    if info.metadata is None:
        return info
    infos, first = info.metadata.output_info, info.first_result
    known = _Known(
        first,
        first + len(infos) + info.metadata.num_intermediate_bases,
        infos,
        info.new_values,
        frozenset(info.metadata.mutated_inp_runtime_indices),
        info.kind == "inference",
    )
    views = _taken_out(gm.graph, known)
    return info.having(views=views, seen=known.last if views is None else views.seen)


@dataclass(frozen=True)
class _Known:
    """AOTAutograd's description of a graph's outputs.

    Attributes:
        first, last: those between are what the program returns, and owners of memory of which it makes others again.
        infos: its account of what the program returns.
        rewritten: for outputs before the first that are new values of inputs the number of the input.
        mutated: the numbers of all inputs that the program writes to.
        inference: whether no gradient is computed.
    """

    first: int
    last: int
    infos: Sequence[Any]
    rewritten: Mapping[int, int]
    mutated: frozenset[int]
    inference: bool


def _ends(graph: torch.fx.Graph) -> tuple[dict[torch.fx.Node, int], list[Any]]:
    """The numbers of a graph's inputs, and its outputs."""
    outputs: list[Any] = list(graph.output_node().args[0])  # type: ignore[arg-type]  # a backend's graph has a tuple
    return {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}, outputs


def _taken_out(graph: torch.fx.Graph, known: _Known) -> Views | None:
    """Makes a graph return the owners of memory in place of views of them.

    Returns:
        How these are made; None if there are none, and the graph is as it was.
    """
    inputs, outputs = _ends(graph)
    new = _new_values(outputs, known.rewritten, inputs)
    not_owned = inputs | {owner: i for owner, (i, _) in new.items()}
    alone = [
        n
        for n in range(known.first, min(known.last, len(outputs)))
        if _is_alone(outputs[n], known.infos[n - known.first] if n - known.first < len(known.infos) else None)
    ]
    chains = {n: _chain(outputs[n], not_owned) for n in alone}
    owners = Counter(owner for owner, _ in chains.values())
    shared = {
        n: (owner, chain)
        for n, (owner, chain) in chains.items()
        if owner in new
        or (chain if owner in inputs else _has_layout(owner) and (owners[owner] > 1 or _is_permuted(owner, chain)))
    }
    shared |= _saved_outputs(
        outputs, known, {outputs[n]: n for n in alone if n not in shared and outputs[n] not in not_owned}
    )
    return _Maker(graph, known, inputs, new).made(outputs, shared) if shared else None


def _gradient_views(graph: torch.fx.Graph) -> Views | None:
    """Makes a backward graph return no gradients that are views of one that comes in, but not expanded ones."""
    inputs, outputs = _ends(graph)
    tangents = {node for node in inputs if "tangents" in str(node.target)}
    found = {}
    for n, node in enumerate(outputs):
        value = fake_value(node)
        if not _is_large(value) or value.device.type != "cpu" or 0 in value.stride():
            continue
        owner, chain = _chain(node, inputs)
        sizes = [size for step in chain for v in pytree.tree_leaves(step.meta["val"]) for size in v.shape]
        if owner in tangents and chain and all(isinstance(size, int) for size in sizes):
            found[n] = owner, chain
    if not found:
        return None
    views = _Maker(graph, _Known(0, len(outputs), (), {}, frozenset(), True), inputs, {}).made(outputs, found)
    views.grad = False  # as what a backward computes: AOTAutograd records second derivatives itself
    return views


def _is_large(value: Any) -> TypeGuard[torch.Tensor]:
    """True for a tensor, of a size that is known, that takes longer to copy than to view."""
    is_known = isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)
    # `numel` and `nbytes` need known strides, too
    return is_known and math.prod(value.shape) * value.itemsize >= _LEAST_SAVED


def _is_whole(node: torch.fx.Node, owner: torch.fx.Node, chain: Sequence[torch.fx.Node]) -> bool:
    """True if views, of sizes that are known, lead from a tensor to another one of all its elements."""
    values = [n.meta["val"] for n in (*chain, node)]
    if not all(isinstance(v, torch.Tensor) and all(isinstance(n, int) for n in v.shape) for v in values):
        return False
    return math.prod(values[-1].shape) == math.prod(owner.meta["val"].shape) and _has_layout(node)


def _saved_outputs(
    outputs: Sequence[Any], known: _Known, returned: Mapping[torch.fx.Node, int]
) -> dict[int, tuple[torch.fx.Node, list[torch.fx.Node]]]:
    """The outputs saved for the backward that are, or are views of, one that the program returns, and that one.

    As for eager tensors, the backward is refused if the program writes to that in between.

    Args:
        returned: the numbers of those that the program returns, and of which nothing else is known.
    """
    own = {v: n for v, n in returned.items() if v.meta["val"].device.type == "cpu" and _has_layout(v)}
    found: dict[int, tuple[torch.fx.Node, list[torch.fx.Node]]] = {}
    for n in range(known.last, len(outputs)):
        value = fake_value(outputs[n])
        if not _is_large(value):
            continue
        owner, chain = _chain(outputs[n], own)
        if owner in own and _is_whole(outputs[n], owner, chain):
            found |= {n: (owner, [node for node in chain if not _is_detach(node)]), own[owner]: (owner, [])}
    return found


def _is_detach(node: torch.fx.Node) -> bool:
    return overload_of(node.target) == DETACH


def _new_values(
    outputs: Sequence[Any], rewritten: Mapping[int, int], inputs: Mapping[torch.fx.Node, int]
) -> dict[torch.fx.Node, tuple[int, list[_Call]]]:
    """The new values of inputs of the device, which are in their memory: of what is on the CPU AOTAutograd takes care.

    Returns:
        For each the number of the input, and the views of that which are as the value is.
    """
    found = {}
    for n, i in rewritten.items():
        owner, chain = _chain(outputs[n], inputs) if is_jax_node(outputs[n]) else (None, [])
        back = [_inverse(node) for node in reversed(chain)]
        if owner is not None and owner not in inputs and None not in back:
            found[owner] = i, [call for call in back if call]
    return found


def _inverse(node: torch.fx.Node) -> _Call | tuple[()] | None:
    """A view that undoes a view; () if both are alike, None if a part is missing."""
    args: Any = node.args
    name = overload_of(node.target) or ""
    if name in (DETACH, "alias"):
        return ()
    if name in ("t", "transpose.int"):
        return name, tuple(args[1:])
    if name == "permute":
        order = [d % len(args[1]) for d in args[1]]
        return name, ([order.index(d) for d in range(len(order))],)
    if name.partition(".")[0] in ("view", "_unsafe_view", "squeeze", "unsqueeze") and name != "view.dtype":
        return "view", (list(args[0].meta["val"].shape),)
    return None


def _is_alone(node: Any, info: Any) -> bool:
    """True if an output is a tensor that AOTAutograd does not recreate."""
    if not isinstance(node, torch.fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return is_jax_node(node) or info is None or info.output_type not in MADE_AGAIN


def _has_layout(node: torch.fx.Node) -> bool:
    """True if a result can have the layout that the graph says; not if its elements overlap."""
    value = node.meta["val"]
    sizes, strides = value.shape, value.stride()
    if is_jax_node(node) or not all(isinstance(n, int) for n in (*sizes, *strides)):
        return True
    return value.is_contiguous() or strided_layout_of(sizes, strides) is not None


def _step_of(node: torch.fx.Node) -> tuple[str, torch.fx.Node] | None:
    """The view operator that a node calls, and its operand; None if the result has its own memory."""
    if node.target is operator.getitem:
        made_by: Any = node.args[0]
        return None if _step_of(made_by) is None else (ITEM, made_by)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if node.target.namespace != "aten" or not is_view(node.target):
        return None
    operand: Any = node.args[0]
    reads_memory = node.target is torch.ops.aten.as_strided.default and is_jax_node(node)
    if reads_memory and not operand.meta["val"].is_contiguous():
        return None  # of memory that a graph sees row-major it reads other elements
    return str(overload_of(node.target)), operand


def _is_permuted(owner: torch.fx.Node, chain: Sequence[torch.fx.Node]) -> bool:
    """True if a tensor of the device is all of another one, with its dimensions in another order.

    Its strides tell so, which no result of an executable has there.
    """
    back = [_inverse(node) for node in chain] if is_jax_node(owner) else []
    return None not in back and any(call and call[0] != "view" for call in back)


def _chain(node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
    """The node that owns the memory of an output, and the views that lead from it to the output."""
    chain: list[torch.fx.Node] = []
    while node not in inputs and (step := _step_of(node)) is not None:
        chain.append(node)
        node = step[1]
    return node, chain[::-1]


class _Maker:
    """Builds `Views` from chains of nodes."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        known: _Known,
        inputs: Mapping[torch.fx.Node, int],
        new: Mapping[torch.fx.Node, tuple[int, list[_Call]]],
    ) -> None:
        self._graph, self._known, self._inputs, self._new = graph, known, inputs, new
        placeholders = [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]
        self._symbols = {e for v in placeholders for e in expressions_of(geometry_of(v)) if e.is_symbol}
        self._more: list[torch.fx.Node] = []
        self._numbers: dict[torch.fx.Node, NumberRef] = {}
        self._places: dict[Any, int] = {}

    def made(self, outputs: list[Any], shared: dict[int, tuple[torch.fx.Node, list[torch.fx.Node]]]) -> Views:
        known, inputs = self._known, {n: i for n, (i, _) in self._new.items()} | {**self._inputs}
        looked_at = sorted({inputs[owner] for owner, _ in shared.values() if owner in inputs})
        self._views = made = Views(looked_at, grad=known.inference and torch.is_grad_enabled())
        results: list[Any] = []
        for n, node in enumerate(outputs):
            owner = shared[n][0] if n in shared else n  # what stands by itself is known by its number
            if isinstance(owner, torch.fx.Node) and owner in inputs:
                self._places[owner] = looked_at.index(inputs[owner])
            elif owner not in self._places:
                self._places[owner] = len(looked_at) + len(results)
                results.append(node if owner is n else owner)
                made.seen += n < known.last
        made.results = len(results)
        made.outputs = [self._follow(n, *shared[n]) if n in shared else self._places[n] for n in range(len(outputs))]
        self._graph.output_node().args = ((*results, *self._more),)
        return made

    def _follow(self, n: int, owner: torch.fx.Node, chain: list[torch.fx.Node]) -> int:
        """The index of an output among the values."""
        place, of = self._places[owner], ""
        for k, (name, args) in enumerate(self._new[owner][1] if owner in self._new else ()):
            filled = torch.fx.node.map_aggregate(args, self._expressed)
            place = self._put(ViewCall(name, place, _plain(filled), {}, True), (owner, k))
        if not chain or self._known.inference or is_jax_node(owner):
            return self._along(chain, place, of)
        # What autograd is told of tensors is between those that AOTAutograd hands over; here is their memory alone.
        if n < self._known.last and self._known.infos[n - self._known.first].requires_grad:
            return self._put(ViewCall(DETACH, self._along(chain, place, of), (), {}, False), (chain[-1], DETACH))
        place = self._put(ViewCall(DETACH, place, (), {}, False), (owner, DETACH))
        return self._along(chain, place, DETACH)

    def _along(self, chain: list[torch.fx.Node], place: int, of: str) -> int:
        for node in chain:
            overload, _ = _step_of(node)  # type: ignore[misc]  # it is a chain of views
            args, kwargs = torch.fx.node.map_arg((node.args[1:], node.kwargs), self._number)  # type: ignore[arg-type]  # it takes any function
            on_jax = is_jax_node(node.args[0]) and overload != ITEM
            step = ViewCall(overload, place, _plain(args), _plain(kwargs), on_jax)
            place = self._put(step, (node, of))
        return place

    def _put(self, step: ViewCall, key: Any) -> int:
        views = self._views
        if key not in self._places:
            self._places[key] = len(views.inputs) + views.results + len(views.steps)
            views.steps.append(step)
        return self._places[key]

    def _expressed(self, value: Any) -> Any:
        """The form of a size in `Views`, from which a call finds its value."""
        if not isinstance(value, torch.SymInt):
            return value
        self._views.numbers.append(value)
        return NumberRef(len(self._views.numbers) - 1)

    def _number(self, node: torch.fx.Node) -> NumberRef:
        if node not in self._numbers:
            self._numbers[node] = NumberRef(len(self._views.numbers))
            value = node.meta["val"]
            is_known = all(e.free_symbols <= self._symbols for e in expressions_of([value]))
            self._views.numbers.append(self._inputs.get(node, value if is_known else None))
            if node not in self._inputs and not is_known:
                self._more.append(node)
        return self._numbers[node]


def _plain(value: Any) -> Any:
    """FX's lists and dicts as Python's, for pickling."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
