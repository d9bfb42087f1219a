"""Operators on the device `jax` that determine a tensor's place in memory: views, `detach`, `set_`, `resize_`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

from ..arrays import attributes, carrier, uninitialized_values, view_ops
from ..arrays.attributes import attributes_of, give
from ..arrays.storage_views import View, resized
from ..arrays.strides import row_major
from ..errors import UnsupportedInputError
from ..ops import memory_layout
from ..registry.handlers import BELOW_PYTHON, Handler, handler
from ..schema import VARIANTS
from ..tensor import storage
from ..tensor.operand_values import is_traced
from ..tensor.tensor import Tensor, become, from_view
from .functional import aten_op, functional
from .operands import to_carrier, wrapped

_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


def view_op(func: Any) -> Handler:
    """The handler of a view op, which returns one or more tensors in the operand's storage."""
    as_dtype = func is torch.ops.aten.view.dtype  # torch makes its result as any new tensor
    views = view_ops.viewer(func)

    def traced(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # AOTAutograd tracks aliases by ATen's op; the graph is retargeted when it is complete
        if func is torch.ops.aten.as_strided.default:
            _require_row_major(tensor)
        inner = to_carrier(tensor)
        if _lies_otherwise(tensor, inner):
            view_ops.require_view(func, tensor, args, kwargs)
        return wrapped(func(inner, *args, **kwargs))

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        view = attributes.view_or_none(tensor)
        if view is None:
            if is_traced(tensor):
                return traced(tensor, *args, **kwargs)
            view = carrier.view_of(tensor)  # which says what the tensor is
        found = views(view, tensor.dtype, args, kwargs)
        if type(found) is list:
            return [_view_like(tensor, *f) for f in found]
        return from_view(*found) if as_dtype and tensor.is_inference() else _view_like(tensor, *found)

    return call


def _lies_otherwise(tensor: torch.Tensor, inner: torch.Tensor) -> bool:
    """True for an input of a capture with other strides than its carrier, which is row-major, if they are known."""
    own, its = tensor.stride(), inner.stride()
    return all(type(n) is int for n in (*tensor.shape, *own, *its)) and own != its


def _require_row_major(tensor: torch.Tensor) -> None:
    """Raises for an operand of `as_strided` in a capture, which has the elements in their order, if that is another."""
    if tensor.stride() != to_carrier(tensor).stride():
        raise UnsupportedInputError("the operand of as_strided", "not contiguous", "x.contiguous() before")


@handler("aten::as_strided_copy", "jaten::as_strided_copy", "jaten::as_strided")
def as_strided_copy(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """A copy of what `as_strided` gives: it reads the operand's memory, and not its elements."""
    if is_traced(self):
        _require_row_major(self)
        return functional("as_strided_copy")(self, size, stride, storage_offset)
    return self.as_strided(size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


@handler("jaten::as_strided_scatter")
def direct_scatter(*args: Any, **kwargs: Any) -> torch.Tensor:
    """jaten's own, by its kernel, whose gradient is about elements, too."""
    return memory_layout.within_memory(functional("as_strided_scatter"))(*args, **kwargs)


@handler("aten::as_strided_scatter")
def as_strided_scatter(
    self: torch.Tensor, src: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None
) -> torch.Tensor:
    """A copy, with all of the memory behind it, to which `src` is written where `as_strided` says."""
    if is_traced(self):
        _require_row_major(self)
        return functional("as_strided_scatter")(self, src, size, stride, storage_offset)
    if self.requires_grad and not self.is_contiguous():  # as in ATen, whose gradient would be another's
        raise RuntimeError("as_strided_scatter is currently only supported for contiguous inputs")
    if any(n > 1 and step == 0 for n, step in zip(self.shape, self.stride(), strict=True)):  # as in ATen
        copy = self.clone()
    else:
        elements = self.untyped_storage().nbytes() // self.itemsize
        memory = self.as_strided((elements,), (1,), 0).clone()
        copy = memory.as_strided(self.shape, self.stride(), self.storage_offset())
    copy.as_strided(size, stride, storage_offset).copy_(src)
    return copy


def in_place_view(func: Any) -> Handler:
    """The handler of `t_` and similar: the tensor gets the sizes and strides of the view op of that name."""
    views = view_ops.viewer(aten_op(VARIANTS[func.name().removeprefix("aten::")].base))

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_traced(tensor):
            inner = to_carrier(tensor)
            func(inner, *args, **kwargs)
            if isinstance(tensor, Tensor):
                tensor.data = Tensor(inner)  # its sizes and strides
            return tensor
        become(tensor, *views(carrier.view_of(tensor), tensor.dtype, args, kwargs))
        return tensor

    return call


@handler("aten::detach")
def detach(tensor: torch.Tensor) -> torch.Tensor:
    """The same, which has a version of its own: outside of inference mode it can be written."""
    shared = alias(tensor)
    if not shared.is_inference() or torch.is_inference_mode_enabled() or is_traced(shared):
        return shared
    with torch._C._ExcludeDispatchKeyGuard(_PYTHON):  # made outside of the mode a copy in C++ has a version
        written = torch.Tensor._make_subclass(Tensor, shared)
    give(written, attributes_of(shared))
    return written


@handler("aten::alias")
def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same elements of the same storage."""
    if is_traced(tensor):  # ATen's op: functionalization knows that its result shares memory
        inner = torch.ops.aten.alias(to_carrier(tensor))
        return Tensor.of_inner(inner, tensor.stride()) if isinstance(tensor, Tensor) else Tensor(inner)
    return _view_like(tensor, _same(carrier.view_of(tensor)), tensor.dtype)


def _view_like(base: torch.Tensor, view: View, dtype: torch.dtype) -> Tensor:
    """A new tensor that shares a storage with another; an inference tensor if that is one, in any mode."""
    is_inference = base.is_inference()
    if torch.is_inference_mode_enabled() is is_inference:
        return from_view(view, dtype)
    with torch.inference_mode(is_inference):
        return from_view(view, dtype)


@handler("aten::detach_")
def detach_(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself: autograd has already detached it."""
    return tensor


def _same(view: View) -> View:
    return View(view.storage, view.shape, view.stride, view.offset)


@handler("aten::resize_")
def resize_(
    tensor: torch.Tensor, size: Sequence[int], *, like: torch.Tensor | None = None, memory_format: Any = None
) -> torch.Tensor:
    """Changes the sizes; the storage grows if needed."""
    if is_traced(tensor):
        if tuple(size) != tuple(tensor.shape):  # torch would change those of the carrier alone
            raise UnsupportedFakeTensorException("other sizes of a tensor in place, on the device jax")
        return tensor
    view = carrier.view_of(tensor)
    stride = view_ops.strides_resized(view, size, like, memory_format)
    if (tuple(size), stride) != (view.shape, view.strides()):
        become(tensor, resized(view, tuple(size), stride, uninitialized_values.value_of(tensor.dtype)), tensor.dtype)
    return tensor


@handler("aten::resize_as_")
def resize_as_(tensor: torch.Tensor, like: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """Resizes to the sizes of another tensor."""
    return resize_(tensor, like.shape, like=like, memory_format=memory_format)


@handler("aten::set_.source_Tensor")
def set_to_tensor_(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Sets a tensor to the memory of another tensor."""
    if is_traced(tensor):
        # torch cannot capture such a change of a subclass's tensor
        raise UnsupportedFakeTensorException("set_, or x.data = y, on the device jax: write x.copy_(y) in its place")
    become(tensor, _same(carrier.view_of(source)), source.dtype)
    return tensor


if hasattr(torch.ops.aten, "shallow_copy_data_"):  # since torch 2.15, for `x.data = y`
    handler("aten::shallow_copy_data_")(set_to_tensor_)


@handler("aten::set_.source_Tensor_storage_offset", "aten::set_.source_Storage_storage_offset")
def set_to_part_(
    tensor: torch.Tensor, source: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """Sets a tensor to a part of the memory of another tensor, or of a storage."""
    shape = tuple(size)
    strides = tuple(stride) or row_major(shape)
    if isinstance(source, torch.Tensor):
        view, dtype = View(carrier.view_of(source).storage, shape, strides, offset), source.dtype
    else:
        view, dtype = storage.view_in(source, tensor.dtype, offset, shape, strides), tensor.dtype
    become(tensor, resized(view, shape, strides), dtype)
    return tensor


@handler("aten::set_.source_Storage", keys=(BELOW_PYTHON,))  # torch.tensor(storage) calls it below
def set_to_storage_(tensor: torch.Tensor, source: Any) -> torch.Tensor:
    """Sets a tensor to all elements of a storage."""
    become(tensor, storage.all_elements(source, tensor.dtype), tensor.dtype)
    return tensor


@handler("aten::set_")
def set_to_nothing_(tensor: torch.Tensor) -> torch.Tensor:
    """Sets a tensor to an empty storage."""
    become(tensor, carrier.view_of(functional("empty.memory_format")([0], dtype=tensor.dtype)), tensor.dtype)
    return tensor
