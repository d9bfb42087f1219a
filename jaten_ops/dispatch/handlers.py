"""Each operator on tensors of the device `jax`: what runs it, chosen at its first call.

In this order: what moves or aliases values (`device_ops`), views, in-place and out= forms, kernels, compositions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import registry
from ..arrays import attributes, bridge, carrier, view_ops
from ..arrays.storage_views import View
from ..device import privateuse1
from ..errors import UnsupportedInputError
from ..meta import aten_overload
from ..ops import as_strided, define, variants
from ..ops.op_call import OpKernel
from ..registry import external_ops
from ..schema import COMPOSITE, KEEPS_MEMORY_ORDER, VARIANTS, OpSpec
from ..tensor.tensor import (
    Handler,
    Tensor,
    Traced,
    array_of,
    become,
    from_array,
    from_view,
    is_traced,
    set_maker,
    two_devices,
    view_like,
)
from . import in_place


def is_on_jax(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "jax"


def to_carrier(tensor: torch.Tensor) -> torch.Tensor:
    """The carrier of an operand: a wrapper's own, a carrier as it is, a 0-d CPU tensor as a new one."""
    if isinstance(tensor, Tensor):
        return tensor._carrier
    if is_on_jax(tensor) or is_traced(tensor):
        return tensor
    return carrier.wrap(array_of(tensor))


def _unwrap(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return to_carrier(value)
    if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return [_unwrap(v) for v in value]
    return value


def _wrap(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Tensor(value) if is_on_jax(value) else value
    if isinstance(value, list | tuple):
        return type(value)(_wrap(v) for v in value)
    return value


OF_NAMESPACES: dict[str, Callable[[Any], Handler]] = {}
"""What makes the handlers of operators that are no computations, by the namespace of these."""


def _make(func: Any) -> Handler:
    if func.namespace in OF_NAMESPACES:
        return OF_NAMESPACES[func.namespace](func)
    overload = external_ops.name_of(func)
    if func.namespace == "aten" and view_ops.is_view(func):
        return _view_op(func)
    if overload in VARIANTS:
        spec = VARIANTS[overload]
        return _changes_geometry(func, spec.base) if "inplace_view" in spec.tags else variant(overload)
    if overload in registry.KERNELS:
        if external_ops.is_foreign(overload):
            external_ops.require_schema(registry.SPECS[overload], func)
        return functional(overload)
    return _of_others(func) if external_ops.is_foreign(func.name()) else _composite(func)


set_maker(_make)


def _of_others(func: Any) -> Handler:
    """An operator of another library that has no kernel here: as that has it, and in a graph a node."""

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(map(is_traced, tensors)):
            args, kwargs = tree_map_only(torch.Tensor, to_carrier, (args, kwargs))
            return tree_map_only(torch.Tensor, _wrap, func(*args, **kwargs))
        return _composite(func)(*args, **kwargs)

    return call


def _composite(func: Any) -> Handler:
    """ATen's own composition of other operators."""
    for key in (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.CompositeExplicitAutograd):
        if func.has_kernel_for_dispatch_key(key):
            return functools.partial(func._op_dk, key)
    raise registry.missing(func.name())


@functools.cache
def kernel_of(overload: str) -> Handler:
    """A functional overload on tensors of one device, row-major: its kernel, or a node of the traced graph."""
    spec = registry.SPECS[overload]

    def rescue(error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(error, Traced):
            return _traced(overload, args, kwargs)
        if "incompatible devices" not in str(error):
            raise error
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        raise two_devices(*dict.fromkeys(str(t.device) for t in tensors)) from None

    return OpKernel(spec, array_of, from_array, (Traced, ValueError), rescue).prepared()


@functools.cache
def functional(overload: str) -> Handler:
    """A functional overload as ATen has it: on the device and in the memory format that a call names."""
    if overload in KEEPS_MEMORY_ORDER:
        return as_strided.in_memory_order(kernel_of("resize"))
    spec, call = registry.SPECS[overload], kernel_of(overload)
    names = {a.name for a in spec.arguments if a.is_of_storage}
    may_be_on_cpu = [
        i for i, a in enumerate(spec.arguments) if a.type == "Tensor?[]" or a.name in _ON_CPU.get(overload, ())
    ]

    def call_with_cpu(*args: Any, **kwargs: Any) -> Any:
        return call(*(_moved(a) if i in may_be_on_cpu else a for i, a in enumerate(args)), **kwargs)

    def call_placed(*args: Any, **kwargs: Any) -> Any:
        return placed(call(*args, **kwargs), kwargs.get("device"))

    def call_laid_out(*args: Any, memory_format: Any = None, **kwargs: Any) -> Any:
        result = call_placed(*args, **kwargs)
        return result if is_traced(result) else _laid_out(result, args[0], memory_format)

    if may_be_on_cpu:
        return call_with_cpu
    if spec.returns != ("Tensor",):  # a gradient's operator has the arguments of its own, which place no gradient
        return call
    if "memory_format" in names and spec.takes_tensor:
        return call_laid_out
    return call_placed if "device" in names else call


# Where CUDA takes tensors on the CPU too, besides indices.
_ON_CPU = {
    "_ctc_loss.Tensor": ("targets", "input_lengths", "target_lengths"),
    "_ctc_loss_backward.Tensor": ("targets", "input_lengths", "target_lengths"),
    "_pack_padded_sequence": ("lengths",),
}


def placed(result: torch.Tensor, wanted: Any) -> torch.Tensor:
    """A result on the device that a call names, if it names one."""
    if wanted is None or is_traced(result):
        return result
    where = torch.device(wanted)
    if where.type != "jax":
        return result.to(where)
    if where.index is None or where == result.device:
        return result
    view, array = carrier.view_of(result), privateuse1.put(array_of(result), where)
    return from_array(array) if view.is_row_major() else from_view(View.laid_out(array, view.strides()), result.dtype)


def _moved(value: Any) -> Any:
    """A tensor, or those of a list, moved onto the device from the CPU."""
    if isinstance(value, list | tuple):
        return [_moved(v) for v in value]
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.to("jax") if is_traced(value) else from_array(borrowed_copy(value))
    return value


def _laid_out(result: torch.Tensor, like: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    """A result in the memory format that is asked for, or, if that is to be preserved, in the operand's."""
    if not is_on_jax(result):
        return result
    if memory_format in (None, torch.preserve_format):
        view = carrier.view_of(like) if is_on_jax(like) else None
        if view is None or view.is_row_major() or result.shape != like.shape:
            return result
        stride = view_ops.strides_kept(view.shape, view.strides())
    elif memory_format is torch.contiguous_format:
        return result
    else:
        stride = view_ops.strides_in_format(memory_format, result.shape)
    return from_view(View.laid_out(array_of(result), stride), result.dtype)


def _traced(overload: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    spec = registry.SPECS[overload]
    defaults = {a.name: a.default for a in spec.arguments if a.has_default}
    keywords = {k: _unwrap(v) for k, v in kwargs.items() if k not in defaults or v is not defaults[k]}
    given = list(args)
    while given and given[-1] is defaults.get(spec.arguments[len(given) - 1].name, given):
        given.pop()
    inner = [_unwrap(a) for a in given]
    slots = [i for i, a in enumerate(spec.arguments) if a.type == "Tensor" and not a.kwarg_only]
    op = define.op_of(spec)
    if spec.namespace == "jaten" and any(not isinstance(inner[i], torch.Tensor) for i in slots if i < len(inner)):
        # ATen's op takes a number for a tensor; the graph is renamed to jaten's ops when it is complete
        op = _aten_op(overload)
    return _wrap(op(*inner, **keywords))


def _aten_op(overload: str) -> torch._ops.OpOverload:
    op = aten_overload(overload)
    assert op is not None
    return op


def _view_op(func: Any) -> Handler:
    """A view op: a tensor, or several, in the operand's storage."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_traced(tensor):  # AOTAutograd keeps account of the aliases; the graph is renamed when it is complete
            if func is torch.ops.aten.as_strided.default and tensor.stride() != to_carrier(tensor).stride():
                raise UnsupportedInputError("the operand of as_strided", "not contiguous", "x.contiguous() before")
            return _wrap(func(to_carrier(tensor), *args, **kwargs))
        found = view_ops.views(func, carrier.view_of(tensor), tensor.dtype, args, kwargs)
        return [view_like(tensor, *f) for f in found] if isinstance(found, list) else view_like(tensor, *found)

    return call


def _changes_geometry(func: Any, base: str) -> Handler:
    """`t_` and its like: the tensor itself gets other sizes and strides, by the view op of the same name."""
    view_op = _aten_op(base)

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_traced(tensor):
            inner = to_carrier(tensor)
            func(inner, *args, **kwargs)
            if isinstance(tensor, Tensor) and tensor.shape != inner.shape:
                tensor.data = Tensor(inner)  # its sizes and strides
            return tensor
        become(tensor, *view_ops.views(view_op, carrier.view_of(tensor), tensor.dtype, args, kwargs))
        return tensor

    return call


@functools.cache
def variant(overload: str) -> Handler:
    """An in-place or out= overload."""
    spec = VARIANTS[overload]
    write, aten = _store_counted if _counts(spec) else store, aten_overload(overload)
    if spec.base in COMPOSITE:
        return variants.make_variant(spec, COMPOSITE[spec.base], _aten_op(spec.base), write, aten)
    base = registry.SPECS[spec.base]
    general = variants.make_variant(spec, base, functional(spec.base), write, aten)
    return in_place.shortened(spec, base, general)


def _counts(spec: OpSpec) -> bool:
    """Whether ATen's kernel counts a write as one itself: autograd does of tensors, but not of lists of them."""
    written = variants.mutated_arguments(spec)
    lists = any(a.name in written and a.type == "Tensor[]" for a in spec.arguments)
    return lists and (spec.kind == "out" or spec.packet.startswith("_foreach_"))


def _store_counted(target: torch.Tensor, result: torch.Tensor) -> None:
    if not is_traced(target):
        in_place.count_writes([target])
    store(target, result)


def store(target: torch.Tensor, result: torch.Tensor) -> None:
    """Gives a tensor new values of its shape, which all tensors that share its storage see."""
    view = attributes.view_of(target)
    if view is None and is_traced(target):  # AOTAutograd turns the write into a new value of the graph
        to_carrier(target).copy_(to_carrier(result))
        return
    if result.dtype != target.dtype:
        result = functional("_to_copy")(result, dtype=target.dtype)
    (view or carrier.view_of(target)).write(array_of(result))


def borrowed_copy(tensor: torch.Tensor) -> Any:
    """The array of any tensor; a copy of a tensor in torch's memory, which torch may overwrite."""
    if is_on_jax(tensor):
        return array_of(tensor)
    return bridge.borrow(tensor.clone(memory_format=torch.contiguous_format))
