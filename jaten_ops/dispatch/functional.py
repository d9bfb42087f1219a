"""Functional operators on the device `jax`: the kernel of an overload, or its node in a graph that torch captures."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import registry
from ..arrays import carrier, partitioned, view_ops
from ..arrays.storage_views import View
from ..device import placement
from ..meta import aten_overload
from ..ops import define, memory_layout, named_device
from ..ops.op_call import OpKernel
from ..registry.handlers import Handler, choose_anew
from ..schema import KEEPS_MEMORY_ORDER, OpSpec
from ..tensor.operand_values import Traced, is_traced, two_devices
from ..tensor.tensor import array_of, from_array, from_view
from .operands import is_on_jax, on_one_mesh, onto_device, unwrapped, wrapped


@functools.cache
def kernel_of(overload: str) -> Handler:
    """A functional overload on contiguous tensors of one device: its kernel, or a node of the traced graph."""
    spec = registry.SPECS[overload]

    def rescue(error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(error, Traced):
            return _traced(overload, args, kwargs)
        if "incompatible devices" not in str(error):
            raise error
        moved = on_one_mesh(args, kwargs)
        if moved is not None:
            return kernel_of(overload)(*moved[0], **moved[1])
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        raise two_devices(*dict.fromkeys(str(t.device) for t in tensors)) from None

    return OpKernel(spec, array_of, from_array, (Traced, ValueError), rescue).prepared()


@functools.cache
def functional(overload: str, *, row_major: bool = False) -> Handler:
    """A functional overload, with its result on the device and in the memory format that a call names.

    Args:
        overload: its name.
        row_major: whether results are row-major in any case, as those of jaten's own operators.
    """
    if overload in KEEPS_MEMORY_ORDER:
        return memory_layout.in_memory_order(kernel_of("resize"))
    spec, call = registry.SPECS[overload], kernel_of(overload)
    names = {a.name for a in spec.arguments if a.is_of_storage}
    may_be_on_cpu = [
        i for i, a in enumerate(spec.arguments) if a.type == "Tensor?[]" or a.name in _ON_CPU.get(overload, ())
    ]

    def call_with_cpu(*args: Any, **kwargs: Any) -> Any:
        return call(*(onto_device(a) if i in may_be_on_cpu else a for i, a in enumerate(args)), **kwargs)

    def call_placed(*args: Any, **kwargs: Any) -> Any:
        return on_named_device(call(*args, **kwargs), kwargs.get("device"))

    def call_laid_out(*args: Any, memory_format: Any = None, **kwargs: Any) -> Any:
        if memory_format is not None and is_traced(args[0]):  # the graph's results have it, too
            kwargs["memory_format"] = memory_format
        result = call_placed(*args, **kwargs)
        if is_traced(result):
            return result
        if partitioned.MET:
            result = _where(args[0], result)
        return result if row_major else _laid_out(result, args[0], memory_format)

    if may_be_on_cpu:
        return call_with_cpu
    if spec.namespace != "jaten" and named_device.names_device(spec):
        device_named = named_device.device_named(spec)

        def call_named(*args: Any, **kwargs: Any) -> Any:
            wanted, results = device_named(args, kwargs), call(*args, **kwargs)
            return tree_map_only(torch.Tensor, lambda t: on_named_device(t, wanted), results)

        return call_named
    if spec.returns != ("Tensor",):  # the arguments of a gradient's operator do not place the gradient
        return call
    if "memory_format" in names and spec.takes_tensor:
        return call_laid_out
    return call_placed if "device" in names else call


def _forget(spec: OpSpec) -> None:
    """Has calls of a user's operator look its kernel up again, since another has replaced it."""
    kernel_of.cache_clear()
    functional.cache_clear()
    choose_anew(f"{spec.namespace}::{spec.packet}")


registry.when_replaced(_forget)

# Arguments that may be on the CPU for CUDA, too, besides indices.
_ON_CPU = {
    "_ctc_loss.Tensor": ("targets", "input_lengths", "target_lengths"),
    "_ctc_loss_backward.Tensor": ("targets", "input_lengths", "target_lengths"),
    "_pack_padded_sequence": ("lengths",),
}


def on_named_device(result: torch.Tensor, wanted: Any) -> torch.Tensor:
    """A result moved to the device that a call names, if it names one."""
    if wanted is None or is_traced(result):
        return result
    where = torch.device(wanted)
    if where.type != "jax":
        return result.to(where)
    if where.index is None or where == result.device:
        return result
    view, array = carrier.view_of(result), placement.put_on(array_of(result), where)
    return from_array(array) if view.is_plain() else from_view(View.laid_out(array, view.strides()), result.dtype)


def _where(like: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A result such as that of `zeros_like`, partitioned as the operand."""
    if not is_on_jax(like) or not is_on_jax(result) or like.device != result.device:
        return result
    array = array_of(result)
    kept = partitioned.kept_in_place(array, array_of(like))
    return result if kept is array else from_array(kept)


def _laid_out(result: torch.Tensor, like: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    """A result in the requested memory format, or in the operand's if that is to be preserved."""
    if not is_on_jax(result):
        return result
    if memory_format in (None, torch.preserve_format):
        view = carrier.view_of(like) if is_on_jax(like) else None
        if view is None or view.is_plain() or result.shape != like.shape:
            return result
        stride = view_ops.strides_kept(view.shape, view.strides())
    elif memory_format is torch.contiguous_format:
        return result
    else:
        stride = view_ops.strides_in_format(memory_format, result.shape)
    return from_view(View.laid_out(array_of(result), stride), result.dtype)


def _traced(overload: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The call of an operator on operands without values: it is recorded as a jaten op on the carriers."""
    spec = registry.SPECS[overload]
    defaults = {a.name: a.default for a in spec.arguments if a.has_default}
    keywords = {k: unwrapped(v) for k, v in kwargs.items() if k not in defaults or v is not defaults[k]}
    given = list(args)
    while given and given[-1] is defaults.get(spec.arguments[len(given) - 1].name, given):
        given.pop()
    inner = [unwrapped(a) for a in given]
    slots = [i for i, a in enumerate(spec.arguments) if a.type == "Tensor" and not a.kwarg_only]
    op = define.op_of(spec)
    if spec.namespace == "jaten" and any(not isinstance(inner[i], torch.Tensor) for i in slots if i < len(inner)):
        # ATen's op accepts a number in place of a tensor; the graph is retargeted to jaten's ops when it is complete
        op = aten_op(overload)
    return wrapped(op(*inner, **keywords))


def aten_op(overload: str) -> torch._ops.OpOverload:
    """ATen's operator of an overload."""
    op = aten_overload(overload)
    assert op is not None
    return op
