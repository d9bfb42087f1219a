"""Each operator on tensors of the device `jax`: what runs it, chosen at its first call.

In this order: what moves or aliases values (`_SPECIAL`), views, in-place and out= forms, kernels, ATen's compositions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from . import bridge, carrier, device, library, registry, variants, view_ops
from .aliasing import View, resized, row_major
from .errors import MissingKernelError
from .library import OpKernel
from .meta import aten_overload
from .overlap import make_check
from .schema import COMPOSITE, VARIANTS
from .tensor import (
    HANDLERS,
    Handler,
    Tensor,
    Traced,
    array_of,
    become,
    from_array,
    from_view,
    is_traced,
    make_handler,
    set_maker,
)
from .tracing import opaque

_aten = torch.ops.aten


def _is_on_jax(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "jax"


def _to_carrier(tensor: torch.Tensor) -> torch.Tensor:
    """The carrier of an operand: a wrapper's own, a carrier as it is, a 0-d CPU tensor as a new one."""
    if isinstance(tensor, Tensor):
        return tensor._carrier
    if _is_on_jax(tensor) or is_traced(tensor):
        return tensor
    return carrier.wrap(array_of(tensor))


def _unwrap(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _to_carrier(value)
    if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return [_unwrap(v) for v in value]
    return value


def _wrap(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Tensor(value) if _is_on_jax(value) else value
    if isinstance(value, list | tuple):
        return type(value)(_wrap(v) for v in value)
    return value


def _make(func: Any) -> Handler:
    special = _SPECIAL.get(func)
    if special is not None:
        return special
    namespace, _, name = func.name().partition("::")
    overload = name if namespace in ("aten", "jaten") else f"{namespace}::{name}"
    if namespace == "aten" and view_ops.is_view(func):
        return _view_op(func)
    if overload in VARIANTS:
        spec = VARIANTS[overload]
        return _changes_geometry(func, spec.base) if "inplace_view" in spec.tags else _variant(overload)
    if overload in registry.KERNELS:
        return _functional(overload)
    return _composite(func, overload)


set_maker(_make)


def _composite(func: Any, overload: str) -> Handler:
    """ATen's own composition of other operators."""
    for key in (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.CompositeExplicitAutograd):
        if func.has_kernel_for_dispatch_key(key):
            return functools.partial(func._op_dk, key)
    raise MissingKernelError(f"jaten::{overload}")


@functools.cache
def _functional(overload: str) -> Handler:
    """A functional overload: its kernel on the operands' arrays, or a node of the traced graph."""
    spec = registry.SPECS[overload]
    kernel = OpKernel(spec, array_of, from_array)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except Traced:
            return _traced(overload, args, kwargs)

    return call


def _traced(overload: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    spec = registry.SPECS[overload]
    inner = [_unwrap(a) for a in args]
    keywords = {k: _unwrap(v) for k, v in kwargs.items()}
    slots = [i for i, a in enumerate(spec.arguments) if a.type == "Tensor" and not a.kwarg_only]
    if any(not isinstance(inner[i], torch.Tensor) for i in slots if i < len(inner)):
        # ATen's op takes a number for a tensor; the graph is renamed to jaten's ops when it is complete
        return _wrap(_aten_op(overload)(*inner, **keywords))
    return _wrap(library.op_of(spec)(*inner, **keywords))


def _aten_op(overload: str) -> torch._ops.OpOverload:
    op = aten_overload(overload)
    assert op is not None
    return op


def _view_op(func: Any) -> Handler:
    """A view op: a tensor, or several, in the operand's storage."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_traced(tensor):  # AOTAutograd keeps account of the aliases; the graph is renamed when it is complete
            return _wrap(func(_to_carrier(tensor), *args, **kwargs))
        found = view_ops.views(func, carrier.view_of(tensor), tensor.dtype, args, kwargs)
        return [from_view(*f) for f in found] if isinstance(found, list) else from_view(*found)

    return call


def _changes_geometry(func: Any, base: str) -> Handler:
    """`t_` and its like: the tensor itself gets other sizes and strides, by the view op of the same name."""
    view_op = _aten_op(base)

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_traced(tensor):
            func(_to_carrier(tensor), *args, **kwargs)
            return tensor
        become(tensor, *view_ops.views(view_op, carrier.view_of(tensor), tensor.dtype, args, kwargs))
        return tensor

    return call


@functools.cache
def _variant(overload: str) -> Handler:
    """An in-place or out= overload."""
    spec = VARIANTS[overload]
    if spec.base in COMPOSITE:
        return variants.make_variant(spec, COMPOSITE[spec.base], _aten_op(spec.base), _store)
    return variants.make_variant(spec, registry.SPECS[spec.base], _functional(spec.base), _store)


def _store(target: torch.Tensor, result: torch.Tensor) -> None:
    """Gives a tensor new values of its shape, which all tensors that share its storage see."""
    if is_traced(target):  # AOTAutograd turns the write into a new value of the graph
        _to_carrier(target).copy_(_to_carrier(result))
        return
    if result.dtype != target.dtype:
        result = _functional("_to_copy")(result, dtype=target.dtype)
    carrier.view_of(target).write(array_of(result))


def _borrowed_copy(tensor: torch.Tensor) -> Any:
    """The array of any tensor; a copy of a tensor in torch's memory, which torch may overwrite."""
    if _is_on_jax(tensor):
        return array_of(tensor)
    return bridge.borrow(tensor.clone(memory_format=torch.contiguous_format))


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    if is_traced(tensor):
        return Tensor(torch.ops.jaten.alias(_to_carrier(tensor)))
    return from_view(_same(carrier.view_of(tensor)), tensor.dtype)


def _same(view: View) -> View:
    return View(view.storage, view.shape, view.strides(), view.offset)


_check_copy = cast(Callable[..., None], make_check(VARIANTS["copy_"], registry.SPECS["copy"], ["self"]))


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not _is_on_jax(target):  # out of the device: torch's memory is written
        return target.copy_(bridge.export(array_of(source)))
    if is_traced(target):
        _to_carrier(target).copy_(_to_carrier(source) if _is_on_jax(source) else source)
        return target
    if not _is_on_jax(source):
        source = from_array(_borrowed_copy(source))
    _check_copy({"self": target, "src": source})
    _store(target, _functional("copy")(target, source))
    return target


def _to_copy(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    wanted = kwargs.get("device")
    if wanted is None or torch.device(wanted).type == "jax":
        return _functional("_to_copy")(tensor, **(kwargs | {"device": None}))
    kept = {k: v for k, v in kwargs.items() if k not in ("non_blocking", "layout", "pin_memory")}
    if is_traced(tensor):
        return torch.ops.aten._to_copy(_to_carrier(tensor), **kept)
    # a copy: what torch may write to is never a jax.Array's own memory
    return torch.ops.aten._to_copy(bridge.export(array_of(tensor)), **(kept | {"device": wanted})).clone()


def _local_scalar_dense(tensor: torch.Tensor) -> Any:
    if is_traced(tensor):
        return torch.ops.aten._local_scalar_dense(_to_carrier(tensor))
    return array_of(tensor).item()


def _native_batch_norm(*args: Any, **kwargs: Any) -> Any:
    """ATen's op writes to the running statistics, though its schema does not say so."""
    values = library.Signature(registry.SPECS["native_batch_norm"]).bind(args, kwargs)
    input, weight, bias, running_mean, running_var, training, momentum, eps = values
    if not training or running_mean is None:
        return _functional("native_batch_norm")(*values)
    functional = _functional("_native_batch_norm_legit_functional")
    *results, mean, var = functional(input, weight, bias, running_mean, running_var, training, momentum, eps)
    _store(running_mean, mean)
    _store(running_var, var)
    return tuple(results)


def _resize_(tensor: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
    if is_traced(tensor):
        _to_carrier(tensor).resize_(size, memory_format=memory_format)
        return tensor
    with torch.utils._python_dispatch._disable_current_modes():
        stride = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format).stride()
    if tuple(size) != tuple(tensor.shape):
        become(tensor, resized(carrier.view_of(tensor), tuple(size), stride), tensor.dtype)
    return tensor


def _set_(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    become(tensor, _same(carrier.view_of(source)), source.dtype)
    return tensor


def _set_part_(
    tensor: torch.Tensor, source: torch.Tensor, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    shape = tuple(size)
    view = View(carrier.view_of(source).storage, shape, tuple(stride) or row_major(shape), offset)
    become(tensor, resized(view, view.shape, view.strides()), source.dtype)
    return tensor


def _set_nothing_(tensor: torch.Tensor) -> torch.Tensor:
    become(tensor, carrier.view_of(_functional("empty.memory_format")([0], dtype=tensor.dtype)), tensor.dtype)
    return tensor


def _is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    one, two = carrier.view_of(tensor), carrier.view_of(other)
    same = one.shape == two.shape and one.strides() == two.strides() and one.offset == two.offset
    return same and one.storage is two.storage


_SPECIAL: dict[Any, Handler] = {
    _aten.detach.default: _alias,
    _aten.alias.default: _alias,
    _aten.lift_fresh.default: _alias,
    _aten.detach_.default: lambda tensor: tensor,
    _aten.copy_.default: _copy_,
    _aten._to_copy.default: _to_copy,
    _aten.native_batch_norm.default: _native_batch_norm,
    _aten._local_scalar_dense.default: _local_scalar_dense,
    _aten.resize_.default: _resize_,
    _aten.resize_as_.default: lambda tensor, like, **kwargs: _resize_(tensor, like.shape, **kwargs),
    _aten.set_.source_Tensor: _set_,
    _aten.set_.source_Tensor_storage_offset: _set_part_,
    _aten.set_.default: _set_nothing_,
    _aten.is_set_to.default: _is_set_to,
}

_ATEN = torch.library.Library("aten", "IMPL")
_FALLBACK = torch.library.Library("_", "IMPL")


@opaque
def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    return (HANDLERS.get(func) or make_handler(func))(*args, **kwargs)


def _factory(overload: str) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return _functional(overload)(*args, **kwargs)

    return opaque(make)


@opaque
def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return _copy_(target, source)


if device.CLAIMED:
    for _spec in registry.SPECS.values():
        if _spec.namespace == "jaten" and _spec.takes_no_tensors and _spec.overload in registry.KERNELS:
            _ATEN.impl(_spec.overload, _factory(_spec.overload), "PrivateUse1")
    # carriers and factories come here; wrappers are caught above, by __torch_dispatch__
    _FALLBACK.fallback(_fallback, "PrivateUse1")
    # `torch.tensor(..., device="jax")` copies with __torch_dispatch__ switched off, where the fallback is not reached
    _ATEN.impl("_copy_from", _copy_from, "PrivateUse1")
