"""Operators on the device `jax` that say where a tensor lies: views, `detach`, `set_`, `resize_`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

from ..arrays import carrier, uninitialized_values, view_ops
from ..arrays.storage_views import View, resized
from ..arrays.strides import row_major
from ..errors import UnsupportedInputError
from ..registry.handlers import BELOW_PYTHON, Handler, handler
from ..schema import VARIANTS
from ..tensor import storage
from ..tensor.operand_values import is_traced
from ..tensor.tensor import Tensor, become, view_like
from .functional import aten_op, functional
from .operands import to_carrier, wrapped


def view_op(func: Any) -> Handler:
    """The handler of a view op: a tensor, or several, in the operand's storage."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_traced(tensor):  # AOTAutograd keeps account of the aliases; the graph is renamed when it is complete
            if func is torch.ops.aten.as_strided.default and tensor.stride() != to_carrier(tensor).stride():
                raise UnsupportedInputError("the operand of as_strided", "not contiguous", "x.contiguous() before")
            return wrapped(func(to_carrier(tensor), *args, **kwargs))
        found = view_ops.views(func, carrier.view_of(tensor), tensor.dtype, args, kwargs)
        return [view_like(tensor, *f) for f in found] if isinstance(found, list) else view_like(tensor, *found)

    return call


def in_place_view(func: Any) -> Handler:
    """The handler of `t_` and its like: the tensor itself gets other sizes and strides, by the view op of the name."""
    view = aten_op(VARIANTS[func.name().removeprefix("aten::")].base)

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_traced(tensor):
            inner = to_carrier(tensor)
            func(inner, *args, **kwargs)
            if isinstance(tensor, Tensor) and tensor.shape != inner.shape:
                tensor.data = Tensor(inner)  # its sizes and strides
            return tensor
        become(tensor, *view_ops.views(view, carrier.view_of(tensor), tensor.dtype, args, kwargs))
        return tensor

    return call


@handler("aten::alias", "aten::detach")
def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements of the same storage."""
    if is_traced(tensor):  # ATen's op, of which functionalization knows that what is written to one is in the other
        inner = torch.ops.aten.alias(to_carrier(tensor))
        return Tensor.of_inner(inner, tensor.stride()) if isinstance(tensor, Tensor) else Tensor(inner)
    return view_like(tensor, _same(carrier.view_of(tensor)), tensor.dtype)


@handler("aten::detach_")
def detach_(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor: autograd, above, has taken it out of its graph."""
    return tensor


def _same(view: View) -> View:
    return View(view.storage, view.shape, view.strides(), view.offset)


@handler("aten::resize_")
def resize_(
    tensor: torch.Tensor, size: Sequence[int], *, like: torch.Tensor | None = None, memory_format: Any = None
) -> torch.Tensor:
    """Other sizes; the storage grows if it must."""
    if is_traced(tensor):
        to_carrier(tensor).resize_(size, memory_format=memory_format)
        return tensor
    view = carrier.view_of(tensor)
    stride = view_ops.strides_resized(view, size, like, memory_format)
    if (tuple(size), stride) != (view.shape, view.strides()):
        become(tensor, resized(view, tuple(size), stride, uninitialized_values.value_of(tensor.dtype)), tensor.dtype)
    return tensor


@handler("aten::resize_as_")
def resize_as_(tensor: torch.Tensor, like: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """The sizes of another tensor."""
    return resize_(tensor, like.shape, like=like, memory_format=memory_format)


@handler("aten::set_.source_Tensor")
def set_to_tensor_(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """To where another tensor lies."""
    if is_traced(tensor):
        # torch captures no such change of a subclass's tensor; at this error Dynamo breaks the graph
        raise UnsupportedFakeTensorException("set_, or x.data = y, on the device jax: write x.copy_(y) in its place")
    become(tensor, _same(carrier.view_of(source)), source.dtype)
    return tensor


@handler("aten::set_.source_Tensor_storage_offset", "aten::set_.source_Storage_storage_offset")
def set_to_part_(
    tensor: torch.Tensor, source: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """To a part of the memory of another tensor, or of a storage."""
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
    """To all elements of a storage."""
    become(tensor, storage.whole(source, tensor.dtype), tensor.dtype)
    return tensor


@handler("aten::set_")
def set_to_nothing_(tensor: torch.Tensor) -> torch.Tensor:
    """To no memory."""
    become(tensor, carrier.view_of(functional("empty.memory_format")([0], dtype=tensor.dtype)), tensor.dtype)
    return tensor
