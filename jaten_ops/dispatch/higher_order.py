"""Operators whose operands are functions, as `torch.cond`, on tensors of the device `jax`.

torch has for each of them what runs it in each mode by which a program is captured, and these take no tensors of a
subclass: they are given the carriers, and functions of carriers. Outside of capture it is torch's own composition.
All that jaten knows of how torch calls these operators, which is private, stands here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._higher_order_ops.utils
import torch.nn.attention.flex_attention
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import UnsupportedInputError
from ..hooks.ledger import is_loaded, replace
from ..tensor.tensor import Tensor
from ..tracing import captured
from .operands import is_on_jax

_NAMES = (
    "cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "associative_scan", "invoke_subgraph",
    "flex_attention", "flex_attention_backward", "out_dtype", "print",
)  # fmt: skip
_MODES = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)

# Private, so that a version may lack them: without the first the lines of the user's program are lost
_keeping_lines = getattr(torch._higher_order_ops.utils, "_maybe_run_with_interpreter", lambda fn: fn)
_has_proxy_slot = getattr(
    proxy_tensor, "has_proxy_slot", lambda tensor, tracer: tensor in getattr(tracer, "tensor_tracker", ())
)


def _inner(value: Any) -> Any:
    """The carrier of a tensor of the device; a function of tensors as one of carriers."""
    if isinstance(value, Tensor):
        return value._carrier
    is_function = callable(value) and not isinstance(value, torch.Tensor | torch._ops.OpOverload)
    return _of_carriers(value) if is_function else value


def _outer(value: Any) -> Any:
    is_carrier = isinstance(value, torch.Tensor) and not isinstance(value, Tensor) and is_on_jax(value)
    return Tensor(value) if is_carrier else value


def _result(value: Any) -> Any:
    """The carrier of a function's result, row-major as all are: branches must agree, and fakes may say otherwise."""
    inner = _inner(value)
    return inner.contiguous() if isinstance(value, Tensor) and not inner.is_contiguous() else inner


def _of_carriers(fn: Callable[..., Any]) -> Callable[..., Any]:
    run = _keeping_lines(fn)

    @functools.wraps(run)
    def call(*args: Any) -> Any:
        return tree_map(_result, run(*tree_map(_outer, args)))

    return call


def _is_recorded(mode: Any, tensors: list[Tensor]) -> bool:
    """Whether a graph is recorded whose values are tensors of the device; mostly they are the carriers."""
    return isinstance(mode, ProxyTorchDispatchMode) and any(_has_proxy_slot(x, mode.tracer) for x in tensors)


def _refuse_writes(op: Any, fn: Any) -> None:
    """Raises UnsupportedInputError where a function writes to an operand: torch has no rule for that in a subclass."""
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
    """What runs an operator in a mode of capture, for tensors of the device as well."""

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


def _operators() -> Iterator[Any]:
    for name in _NAMES:
        op = getattr(torch.ops.higher_order, name, None)
        if op is not None and hasattr(op, "python_key_table") and hasattr(op, "py_kernels"):
            yield op


def _teach(what: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replaces a function of torch's, in a module that is imported."""
    if is_loaded(what):
        replace(what, lambda known: functools.wraps(known)(make(known)))


def _storages(known: Any) -> Callable[..., Any]:
    """Where a tensor of the device lies: where its carrier does."""
    return lambda tensor: known(tensor._carrier if isinstance(tensor, Tensor) else tensor)


def teach_dynamo() -> None:
    """Tells Dynamo of the tensors of the device, once it is there: it looks at what functions are called with."""
    _teach("torch._dynamo.variables.higher_order_ops:get_tensor_storages", _storages)


def _environment(known: Any) -> Callable[..., Any]:
    """Outside of compiled programs, too, Dynamo looks at a function before it is run; which is where it is imported."""

    @contextlib.contextmanager
    def environment(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with captured(), known(*args, **kwargs) as backend:
            teach_dynamo()
            yield backend

    return environment


def _device_check(known: Any) -> Callable[..., Any]:
    """`flex_attention` runs on the devices that it knows, on the device as on the best of them."""

    def validate_device(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "jax":
            known(query, key, value)

    return validate_device


def _example(known: Any) -> Callable[..., Any]:
    """What a function is recorded with in place of an operand: of a tensor of the device, one that is like it."""

    def example(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return known(t)
        grad = t.requires_grad
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device, requires_grad=grad)

    return example


def _in_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """What `torch.func`'s transforms have wrapped: a batch, or the values that are differentiated."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _operand_values(known: Any) -> Callable[..., Any]:
    """What Dynamo recorded as the values of operands: of a tensor of the device its carrier, which is what versions
    of torch that know of subclasses here take; those before refuse all that is no fake tensor itself."""

    def value_of(operand: Any) -> list[Any]:
        node = operand.node if isinstance(operand, torch.fx.Proxy) else operand
        value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
        inside = _in_transforms(value) if isinstance(value, torch.Tensor) else value
        return [inside._carrier] if isinstance(inside, Tensor) else known([operand])

    return lambda operands: [value for operand in operands for value in value_of(operand)]


def _print_on_device(op: Any, dense: Callable[..., Any]) -> None:
    """Has `print` show a program's tensors where it is run on what a graph has of them; autograd has no part in it."""

    def show(*args: Any, **kwargs: Any) -> None:
        dense(*tree_map(_outer, args), **tree_map(_outer, kwargs))

    op.py_impl(DispatchKey.PrivateUse1)(show)
    op.fallthrough(DispatchKey.AutogradPrivateUse1)


def register() -> None:
    """Tells torch's operators of the tensors of the device."""
    for module in ("torch._higher_order_ops.utils", "torch.nn.attention.flex_attention"):
        _teach(f"{module}:setup_compilation_env", _environment)
    for name in ("utils", "map", "invoke_subgraph"):
        _teach(f"torch._higher_order_ops.{name}:_from_fun", _example)
    _teach("torch._higher_order_ops.utils:_collect_fake_inputs", _operand_values)
    _teach("torch.nn.attention.flex_attention:_validate_device", _device_check)
    teach_dynamo()
    for op in _operators():
        table = op.python_key_table
        for mode in _MODES:
            if mode in table:
                table[mode] = _with_carriers(op, table[mode])
        dense = op.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        if dense is not None and Tensor not in table:
            op.py_impl(Tensor)(dense)
        if op.__name__ == "print":
            _print_on_device(op, dense)
