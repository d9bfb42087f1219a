"""`torch.cond`, loops and scans while JAX traces the tensors of the device: JAX's control flow.

torch captures the functions that these operators are given, and their derivatives, as graphs, wherever it runs them. It
is the operators on tensors that would then read a predicate, or take the steps of a loop one by one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from jaten_ops.arrays import seeds as random
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.kernel_base import checks
from jaten_ops.kernels import control_flow
from jaten_ops.ops.executor import collecting
from jaten_ops.tensor.tensor import Tensor, array_of, from_array, has_values


def _stacked_loop(*_args: Any, **_options: Any) -> Any:
    """`while_loop_stack_output`, by which torch takes the gradient of a loop.

    Raises:
        UnsupportedInputError: always: its results are as long as the loop, and JAX knows all sizes.
    """
    raise UnsupportedInputError(
        "torch.while_loop in a program that JAX traces", "one of which a gradient is taken",
        "torch's scan, or a Python loop, which have a known number of steps; or operands that are detached",
    )  # fmt: skip


_RULES: dict[str, Callable[..., Any]] = {
    "cond": control_flow.cond,
    "while_loop": control_flow.while_loop,
    "while_loop_stack_output": _stacked_loop,
    "scan": control_flow.scan,
    "map_impl": control_flow.map_,
    "associative_scan": control_flow.associative_scan,
}


class _Graph:
    """A function of tensors as a function of arrays."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    def inner(self, operands: Sequence[Any], key: jax.Array | None) -> Any:
        seeds = contextlib.nullcontext() if key is None else random.drawn_from(random.seeds_of(key))
        with seeds, collecting() as unchecked:
            results = self._fn(*tree_map_only(jax.Array, from_array, list(operands)))
            results = _arrays_of(results)
        for found in unchecked:
            for number, error in enumerate(found.errors):
                checks.require(found.holds[number], type(error), str(error))
        return results

    def is_random(self) -> bool:
        graphs = [self._fn] if isinstance(self._fn, torch.fx.GraphModule) else []
        every = [g for graph in graphs for g in graph.modules() if isinstance(g, torch.fx.GraphModule)]
        return any(_draws(node) for g in every for node in g.graph.nodes)


def _draws(node: torch.fx.Node) -> bool:
    """True for a node that draws random numbers; a dropout of nothing does not."""
    target: Any = node.target
    if target in _DROPOUTS:
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        return not (given.get("p") == 0 or given.get("training", given.get("train")) is False)  # torch.dropout: train
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) or target in _RANDOM


_DROPOUTS = frozenset({torch.nn.functional.dropout, torch.dropout})
_RANDOM = frozenset({torch.rand_like, torch.randn_like, torch.bernoulli})
"""Other functions that draw random numbers, as they are in Dynamo's graphs."""


def _arrays_of(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: array_of(t.detach()), values)


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, torch.Tensor)


def traceable(name: str, known: Callable[..., Any]) -> Callable[..., Any]:
    """`known`, which runs an operator on functions, with JAX's control flow if JAX traces the operands."""
    rule = _RULES.get(name)
    if rule is None:
        return known

    @functools.wraps(known)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        if all(map(has_values, tensors)):
            return known(*args, **kwargs)
        graphs = {i: _Graph(a) for i, a in enumerate(args) if _is_function(a)}
        key = jax.random.key(random.draw_seed()) if any(g.is_random() for g in graphs.values()) else None
        operands = [graphs.get(i, a) if i in graphs else _arrays_of(a) for i, a in enumerate(args)]
        return tree_map_only(jax.Array, from_array, rule(key, *operands, **kwargs))

    return call
