"""Operators of other libraries without a kernel here, such as collectives: their library's implementation runs.

A graph is parted at each (see `data_dependent_splits`). On the device `jax` they are given the tensors that a program
has, of which a graph sees only what is inside.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from jaten_ops import registry
from jaten_ops.dispatch.operands import is_on_jax, to_carrier
from jaten_ops.registry import external_ops
from jaten_ops.tensor.tensor import Tensor

from ..graph_info import GraphInfo

_log = logging.getLogger(__name__)
_PLAIN = torch._C.DispatchKey.CompositeExplicitAutograd
_OF_TORCH = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "c10d")


def is_unknown(node: torch.fx.Node) -> bool:
    """True if a node calls an operator of another library that has no kernel here, perhaps one that writes."""
    return node.op == "call_function" and operator_in(node) is not None


def operator_in(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The operator of another library, without a kernel here, that a node calls; None if there is none."""
    target: Any = node.target
    if isinstance(target, _AsItIs):
        return target.of
    if writes(target) and node.args:  # the call of one that writes, as one that returns what it would write
        target = node.args[0]
    known = not isinstance(target, torch._ops.OpOverload) or not external_ops.is_foreign(external_ops.name_of(target))
    return None if known or target.namespace == "prims" or external_ops.name_of(target) in registry.KERNELS else target


def writes(target: Any) -> bool:
    """True for the operator by which AOTAutograd replaces one that writes to its arguments."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.__name__.startswith("auto_functionalized")


def is_printed(node: torch.fx.Node) -> bool:
    """True if a node prints: the graph is split there, too, so that it prints in the program's order."""
    return node.target is getattr(torch.ops.higher_order, "print", None)


def third_party_calls(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Has such nodes take and give a program's tensors, and says once for each operator that it does."""
    for node in filter(is_unknown, gm.graph.nodes):
        _run_as_it_is(node)
    return info


def _run_as_it_is(node: torch.fx.Node) -> None:
    op = operator_in(node)
    if op is None or isinstance(node.target, _AsItIs):
        return
    _tell(op.name(), op.namespace in _OF_TORCH)
    target: Any = node.target
    # torch asks a tensor's class what such a call is, which knows none; what it does on plain tensors is in no way
    # about these (private: without it, it serves those alone)
    node.target = _AsItIs(target.py_kernels.get(_PLAIN, target) if writes(target) else target, op)


class _AsItIs:
    """A call of an operator with a program's tensors in place of what a graph has of them."""

    def __init__(self, call: Callable[..., Any], of: torch._ops.OpOverload) -> None:
        self._call, self.of = call, of
        self.__name__ = self.__qualname__ = of._schema.name.rpartition("::")[2]  # FX names its results by it
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, _outside, (args, kwargs))
        return tree_map_only(torch.Tensor, _inside, self._call(*args, **kwargs))


def _outside(tensor: torch.Tensor) -> torch.Tensor:
    return Tensor(tensor) if is_on_jax(tensor) and not isinstance(tensor, Tensor) else tensor


def _inside(tensor: torch.Tensor) -> torch.Tensor:
    return to_carrier(tensor) if is_on_jax(tensor) else tensor


@functools.cache
def _tell(name: str, is_expected: bool) -> None:
    text = "%s has no kernel here: compiled graphs are parted there, and it runs as it is (jaten_ops.kernel gives one)"
    _log.log(logging.INFO if is_expected else logging.WARNING, text, name)
