"""Operators that take functions, such as `torch.cond`, on tensors of the device `jax`.

torch has for each of them what runs it in each mode by which a program is captured, and these take no tensors of a
subclass: they are given the carriers, and functions of carriers. Outside of capture it is torch's own composition.
All that jaten knows of how torch calls these operators, which is private, stands here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._higher_order_ops.utils
import torch.nn.attention._utils
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import UnsupportedInputError
from ..tensor.tensor import Tensor
from .operands import is_on_jax
from .traced_control_flow import traceable

NAMES = (
    "cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "associative_scan", "invoke_subgraph",
    "flex_attention", "flex_attention_backward", "out_dtype", "print",
)  # fmt: skip
_MODES = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)

# Private, so a version may lack them: without the first the lines of the user's program are lost
_keeping_lines = getattr(torch._higher_order_ops.utils, "_maybe_run_with_interpreter", lambda fn: fn)
_has_proxy_slot = getattr(
    proxy_tensor, "has_proxy_slot", lambda tensor, tracer: tensor in getattr(tracer, "tensor_tracker", ())
)


def _inner(value: Any) -> Any:
    """The carrier of a tensor of the device, or a function of tensors as a function of carriers."""
    if isinstance(value, Tensor):
        return value._carrier
    is_function = callable(value) and not isinstance(value, torch.Tensor | torch._ops.OpOverload)
    return _of_carriers(value) if is_function else value


def _outer(value: Any) -> Any:
    is_carrier = isinstance(value, torch.Tensor) and not isinstance(value, Tensor) and is_on_jax(value)
    return Tensor(value) if is_carrier else value


def _result(value: Any) -> Any:
    """The carrier of a function's result, contiguous as all carriers: branches must agree, and fakes may differ."""
    inner = _inner(value)
    return inner.contiguous() if isinstance(value, Tensor) and not inner.is_contiguous() else inner


def _of_carriers(fn: Callable[..., Any]) -> Callable[..., Any]:
    run = _keeping_lines(fn)

    @functools.wraps(run)
    def call(*args: Any) -> Any:
        return tree_map(_result, run(*tree_map(_outer, args)))

    return call


def _is_recorded(mode: Any, tensors: list[Tensor]) -> bool:
    """True if a graph is recorded whose values are tensors of the device; mostly they are the carriers."""
    return isinstance(mode, ProxyTorchDispatchMode) and any(_has_proxy_slot(x, mode.tracer) for x in tensors)


def _refuse_writes(op: Any, fn: Any) -> None:
    """Raises UnsupportedInputError if a function writes to an operand, for which torch has no rule in a subclass."""
    nodes = fn.graph.nodes if isinstance(fn, torch.fx.GraphModule) else ()
    for node in nodes:
        name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
        in_place = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
        written = node.args[0] if node.args and in_place else None
        if isinstance(written, torch.fx.Node) and written.op == "placeholder":
            what, got = f"a function in {op.__name__} on the device 'jax'", f"one that writes to its operand, by {name}"
            raise UnsupportedInputError(what, got, "one that returns new values")


_IN_PLACE = frozenset({
    "setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor",
})  # fmt: skip


def _with_carriers(op: Any, handler: Callable[..., Any]) -> Callable[..., Any]:
    """The function that runs an operator in a mode of capture, which takes tensors of the device as well."""

    @functools.wraps(handler)
    def call(mode: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if not tensors or _is_recorded(mode, tensors):
            return handler(mode, *args, **kwargs)
        if isinstance(mode, FunctionalTensorMode):
            for fn in args:
                _refuse_writes(op, fn)
        with mode:
            return tree_map(_outer, op(*tree_map(_inner, args), **tree_map(_inner, kwargs)))

    return call


def _print_on_device(op: Any, dense: Callable[..., Any]) -> None:
    """Makes `print` show tensors of the device in a graph, where they are carriers, without autograd."""

    def show(*args: Any, **kwargs: Any) -> None:
        dense(*tree_map(_outer, args), **tree_map(_outer, kwargs))

    op.py_impl(DispatchKey.PrivateUse1)(show)
    op.fallthrough(DispatchKey.AutogradPrivateUse1)


def teach(name: str, table: dict[Any, Any]) -> None:
    """Adds handlers for tensors of the device to an operator's table of what runs it, by class and by mode."""
    op = getattr(torch.ops.higher_order, name)
    for mode in _MODES:
        if mode in table:
            table[mode] = _with_carriers(op, table[mode])
    dense = op.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
    if dense is not None and Tensor not in table:
        op.py_impl(Tensor)(traceable(name, dense))
    if name == "print":
        _print_on_device(op, dense)
