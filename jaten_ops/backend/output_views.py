"""Outputs that lie in the memory of an input or of another output, made as views of it.

An executable's results lie each by itself. Of outputs that share memory AOTAutograd makes some again, by the tensor
that owns it, but not those that need no gradient, nor the parts of a tensor that is taken apart, and none on the
device, where it sees no memory. Of these the graph returns the owner alone, and their views are called on that.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jaten_ops.arrays import carrier
from jaten_ops.arrays.view_ops import is_view, views
from jaten_ops.ops.namespace import operator_of

from .layout import concretize, layout_of, symbols_of
from .output_aliases import MADE_AGAIN, expressions_of, geometry_of
from .targets import overload_of

Run = Callable[[list[Any]], list[Any]]
_Call = tuple[str, tuple[Any, ...]]
_ITEM = ""  # in the place of an operator: one of the tensors that a view operator has returned
_DETACH = "detach"


@dataclass(frozen=True)
class Known:
    """What AOTAutograd tells of a graph's outputs.

    Attributes:
        first, last: those between are what the program returns, and owners of memory of which it makes others again.
        infos: its account of what the program returns.
        rewritten: for outputs before the first that are new values of inputs the number of the input.
        inference: whether no gradient is computed.
    """

    first: int
    last: int
    infos: Sequence[Any]
    rewritten: Mapping[int, int]
    inference: bool


@dataclass(frozen=True)
class _Number:
    """One of the numbers of a call, by its place."""

    place: int


@dataclass(frozen=True)
class _ViewCall:
    """A call of a view operator.

    Attributes:
        overload: ATen's.
        operand: the place of its first operand among the values of a call.
        args, kwargs: the others.
        on_jax: whether it is a carrier.
    """

    overload: str
    operand: int
    args: Any
    kwargs: Any
    on_jax: bool

    def function(self) -> Callable[..., Any]:
        if self.overload == _ITEM:
            return operator.getitem
        func = operator_of(self.overload, "aten")
        return _of_carriers(func) if self.on_jax else func


def _of_carriers(func: torch._ops.OpOverload) -> Callable[..., Any]:
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = views(func, carrier.view_of(tensor), tensor.dtype, args, kwargs)
        return [carrier.of(view) for view, _ in found] if isinstance(found, list) else carrier.of(found[0])

    return call


@dataclass
class Views:
    """How the outputs of a program become of the results of its graph: plain data, if all sizes are known.

    The values of a call are the inputs that are looked at, the results, and what the steps return, in this order.

    Attributes:
        inputs: the numbers of these inputs.
        results: how many results there are.
        seen: how many of them the user may see, as such or in views.
        outputs: the places of the outputs among the values.
        steps: the views.
        grad: whether the program makes them with gradients enabled.
        numbers: what is not known of sizes and positions: each the number of an input, an expression of inputs' sizes,
            or None for one of the results that come after the others, in their order.
    """

    inputs: list[int]
    results: int = 0
    seen: int = 0
    outputs: list[int] = field(default_factory=list)
    steps: list[_ViewCall] = field(default_factory=list)
    grad: bool = False
    numbers: list[Any] = field(default_factory=list)


def taken_out(graph: torch.fx.Graph, known: Known) -> Views | None:
    """Has a graph return the owners of memory in the place of outputs that are views of them.

    Returns:
        How these are made; None if there are none, and the graph is as it was.
    """
    inputs = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    outputs: list[Any] = list(graph.output_node().args[0])  # type: ignore[arg-type]  # a backend's graph has a tuple
    new = _new_values(outputs, known.rewritten, inputs)
    not_owned = inputs | {owner: i for owner, (i, _) in new.items()}
    chains = {
        n: _chain(outputs[n], not_owned)
        for n in range(known.first, min(known.last, len(outputs)))
        if _is_alone(outputs[n], known.infos[n - known.first] if n - known.first < len(known.infos) else None)
    }
    owners = Counter(owner for owner, _ in chains.values())
    shared = {
        n: (owner, chain)
        for n, (owner, chain) in chains.items()
        if owner in new
        or (chain if owner in inputs else _has_layout(owner) and (owners[owner] > 1 or _is_permuted(owner, chain)))
    }
    return _Maker(graph, known, inputs, new).made(outputs, shared) if shared else None


def _new_values(
    outputs: Sequence[Any], rewritten: Mapping[int, int], inputs: Mapping[torch.fx.Node, int]
) -> dict[torch.fx.Node, tuple[int, list[_Call]]]:
    """The new values of inputs of the device, which are in their memory: of what is on the CPU AOTAutograd takes care.

    Returns:
        For each the number of the input, and the views of that which are as the value is.
    """
    found = {}
    for n, i in rewritten.items():
        owner, chain = _chain(outputs[n], inputs) if _is_on_jax(outputs[n]) else (None, [])
        back = [_inverse(node) for node in reversed(chain)]
        if owner is not None and owner not in inputs and None not in back:
            found[owner] = i, [call for call in back if call]
    return found


def _inverse(node: torch.fx.Node) -> _Call | tuple[()] | None:
    """The view of a view that is as its operand; () if both are alike, None if a part is missing."""
    args: Any = node.args
    name = overload_of(node.target) or ""
    if name in (_DETACH, "alias"):
        return ()
    if name in ("t", "transpose.int"):
        return name, tuple(args[1:])
    if name == "permute":
        order = [d % len(args[1]) for d in args[1]]
        return name, ([order.index(d) for d in range(len(order))],)
    if name.partition(".")[0] in ("view", "_unsafe_view", "squeeze", "unsqueeze") and name != "view.dtype":
        return "view", (list(args[0].meta["val"].shape),)
    return None


def _is_on_jax(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


def _is_alone(node: Any, info: Any) -> bool:
    """Whether an output is a tensor that AOTAutograd does not make again."""
    if not isinstance(node, torch.fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return _is_on_jax(node) or info is None or info.output_type not in MADE_AGAIN


def _has_layout(node: torch.fx.Node) -> bool:
    """Whether a result lies in memory as the graph says: not if its elements lie over each other."""
    value = node.meta["val"]
    sizes, strides = value.shape, value.stride()
    if _is_on_jax(node) or not all(isinstance(n, int) for n in (*sizes, *strides)):
        return True
    return value.is_contiguous() or layout_of(sizes, strides) is not None


def _step_of(node: torch.fx.Node) -> tuple[str, torch.fx.Node] | None:
    """The view operator that a node calls, and on what; None if it makes memory of its own."""
    if node.target is operator.getitem:
        made_by: Any = node.args[0]
        return None if _step_of(made_by) is None else (_ITEM, made_by)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if node.target.namespace != "aten" or not is_view(node.target):
        return None
    operand: Any = node.args[0]
    reads_memory = node.target is torch.ops.aten.as_strided.default and _is_on_jax(node)
    if reads_memory and not operand.meta["val"].is_contiguous():
        return None  # of memory that a graph sees row-major it reads other elements
    return str(overload_of(node.target)), operand


def _is_permuted(owner: torch.fx.Node, chain: Sequence[torch.fx.Node]) -> bool:
    """Whether a tensor of the device is another one, all of it, with its dimensions in another order.

    Its strides tell so, which no result of an executable has there.
    """
    back = [_inverse(node) for node in chain] if _is_on_jax(owner) else []
    return None not in back and any(call and call[0] != "view" for call in back)


def _chain(node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
    """What owns the memory of an output, and the views that lead from there to the output."""
    chain: list[torch.fx.Node] = []
    while node not in inputs and (step := _step_of(node)) is not None:
        chain.append(node)
        node = step[1]
    return node, chain[::-1]


class _Maker:
    """Makes `Views` of chains of nodes."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        known: Known,
        inputs: Mapping[torch.fx.Node, int],
        new: Mapping[torch.fx.Node, tuple[int, list[_Call]]],
    ) -> None:
        self._graph, self._known, self._inputs, self._new = graph, known, inputs, new
        placeholders = [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]
        self._symbols = {e for v in placeholders for e in expressions_of(geometry_of(v)) if e.is_symbol}
        self._more: list[torch.fx.Node] = []
        self._numbers: dict[torch.fx.Node, _Number] = {}
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
        """The place of an output among the values."""
        place, of = self._places[owner], ""
        for k, (name, args) in enumerate(self._new[owner][1] if owner in self._new else ()):
            filled = torch.fx.node.map_aggregate(args, self._expressed)
            place = self._put(_ViewCall(name, place, _plain(filled), {}, True), (owner, k))
        if not chain or self._known.inference or _is_on_jax(owner):
            return self._along(chain, place, of)
        # What autograd is told of tensors is between those that AOTAutograd hands over; here is their memory alone.
        if self._known.infos[n - self._known.first].requires_grad:
            return self._put(_ViewCall(_DETACH, self._along(chain, place, of), (), {}, False), (chain[-1], _DETACH))
        place = self._put(_ViewCall(_DETACH, place, (), {}, False), (owner, _DETACH))
        return self._along(chain, place, _DETACH)

    def _along(self, chain: list[torch.fx.Node], place: int, of: str) -> int:
        for node in chain:
            overload, _ = _step_of(node)  # type: ignore[misc]  # it is a chain of views
            args, kwargs = torch.fx.node.map_arg((node.args[1:], node.kwargs), self._number)  # type: ignore[arg-type]  # it takes any function
            step = _ViewCall(overload, place, _plain(args), _plain(kwargs), _is_on_jax(node) and overload != _ITEM)
            place = self._put(step, (node, of))
        return place

    def _put(self, step: _ViewCall, key: Any) -> int:
        views = self._views
        if key not in self._places:
            self._places[key] = len(views.inputs) + views.results + len(views.steps)
            views.steps.append(step)
        return self._places[key]

    def _expressed(self, value: Any) -> Any:
        """A size as it is found in a call."""
        if not isinstance(value, torch.SymInt):
            return value
        self._views.numbers.append(value)
        return _Number(len(self._views.numbers) - 1)

    def _number(self, node: torch.fx.Node) -> _Number:
        if node not in self._numbers:
            self._numbers[node] = _Number(len(self._views.numbers))
            value = node.meta["val"]
            is_known = all(e.free_symbols <= self._symbols for e in expressions_of([value]))
            self._views.numbers.append(self._inputs.get(node, value if is_known else None))
            if node not in self._inputs and not is_known:
                self._more.append(node)
        return self._numbers[node]


def _plain(value: Any) -> Any:
    """FX's lists and dicts as Python's, which can be pickled."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def with_views(run: Run, made: Views | None, inputs: Sequence[Any] = ()) -> Run:
    """The function of a program's inputs that returns its outputs.

    Args:
        run: that of its graph.
        made: how they become of the graph's results.
        inputs: what the graph knows of its inputs, if some sizes are not known.
    """
    if made is None:
        return run
    functions = [(step.function(), step.operand, step.args, step.kwargs) for step in made.steps]
    numbers = _numbers(made, inputs) if made.numbers else None
    grad = made.grad and not all(step.on_jax or step.overload == _ITEM for step in made.steps)

    def call(args: list[Any]) -> list[Any]:
        values = [args[i] for i in made.inputs]
        steps: Any = functions
        known = None if numbers is None else numbers(args)
        results = run(args)
        if known is not None:
            steps = _filled(functions, known, results[made.results :])
            del results[made.results :]
        values += results
        before = grad and torch.is_grad_enabled()
        if grad and not before:
            torch._C._set_grad_enabled(True)
        try:
            for function, operand, others, keywords in steps:
                values.append(function(values[operand], *others, **keywords))
        finally:
            if grad and not before:
                torch._C._set_grad_enabled(False)
        return [values[i] for i in made.outputs]

    return call


def _numbers(made: Views, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    """What finds the numbers of a call: those among its results are None yet."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    sizes = [n for v in inputs for n in geometry_of(v)]

    def numbers(args: list[Any]) -> list[Any]:
        key = tuple([n for a in args for n in geometry_of(a)])
        known = found.get(key)
        if known is None:
            symbols = symbols_of(sizes, key)
            known = found[key] = [args[n] if type(n) is int else concretize(n, symbols) for n in made.numbers]
        return known

    return numbers


def _filled(steps: Sequence[Any], known: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """The steps of a call, with its numbers in their places."""
    rest = iter(more)
    numbers = [next(rest) if n is None else n for n in known]

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return numbers[value.place] if isinstance(value, _Number) else value

    return [(f, at, plain(args), {k: plain(v) for k, v in kwargs.items()}) for f, at, args, kwargs in steps]
