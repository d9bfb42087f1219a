"""The outputs of a program as views of the results of its graph: what is called after each call of its executable."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jaten_ops.arrays import carrier
from jaten_ops.arrays.view_ops import viewer
from jaten_ops.ops.namespace import operator_of

from .layout import concretize, geometry_of, symbols_of

Run = Callable[[list[Any]], list[Any]]
ITEM = ""
"""In the place of an operator: one of the tensors that a view operator has returned."""

DETACH = "detach"


@dataclass(frozen=True)
class NumberRef:
    """One of the numbers of a call, by index."""

    place: int


@dataclass(frozen=True)
class ViewCall:
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
        if self.overload == ITEM:
            return operator.getitem
        func = operator_of(self.overload, "aten")
        return _of_carriers(func) if self.on_jax else func


def _of_carriers(func: torch._ops.OpOverload) -> Callable[..., Any]:
    views = viewer(func)

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = views(carrier.view_of(tensor), tensor.dtype, args, kwargs)
        return [carrier.of(view) for view, _ in found] if isinstance(found, list) else carrier.of(found[0])

    return call


@dataclass
class Views:
    """The derivation of a program's outputs from the results of its graph: plain data, if all sizes are known.

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
    steps: list[ViewCall] = field(default_factory=list)
    grad: bool = False
    numbers: list[Any] = field(default_factory=list)


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
    grad = made.grad and not all(step.on_jax or step.overload == ITEM for step in made.steps)

    def call(args: list[Any]) -> list[Any]:
        values = [args[i] for i in made.inputs]
        steps: Any = functions
        known = None if numbers is None else numbers(args)
        results = run(args)
        if known is not None:
            steps = _with_numbers(functions, known, results[made.results :])
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
    """A function that finds the numbers of a call; those among its results are None at first."""
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


def _with_numbers(steps: Sequence[Any], known: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """The steps of a call, with its numbers filled in."""
    rest = iter(more)
    numbers = [next(rest) if n is None else n for n in known]

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return numbers[value.place] if isinstance(value, NumberRef) else value

    return [(f, at, plain(args), {k: plain(v) for k, v in kwargs.items()}) for f, at, args, kwargs in steps]
