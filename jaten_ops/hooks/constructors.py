"""Constructors that make objects on the device `jax`, and functions that change the class of a tensor."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..tensor.lazy_parameters import UninitializedParameter
from ..tensor.moves import exchange
from ..tensor.storage import JaxStorage
from ..tensor.tensor import CLASSES, Tensor
from ..tracing import opaque

_LAZY = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)


def swap_tensors(_known: Any) -> Any:
    """`torch.utils.swap_tensors`, by which modules move parameters of a subclass."""
    return exchange


def as_subclass(known: Any) -> Any:
    """`Tensor.as_subclass`, by which libraries give a tensor of the CPU the class of one on the device."""

    @opaque
    @functools.wraps(known)  # Dynamo knows the method by its name
    def new(self: torch.Tensor, cls: Any) -> Any:
        if isinstance(cls, type) and Tensor in cls.__mro__:  # of those of the device, which have their own method
            cls = CLASSES.elsewhere(cls) or torch.Tensor
        return known(self, cls)

    return new


def parameter(make: Any) -> Any:
    """`Parameter.__new__`, by which a user's subclass of it also makes parameters of tensors on the device."""

    @opaque
    def __new__(cls: type, data: torch.Tensor | None = None, requires_grad: bool = True) -> torch.Tensor:
        new: torch.Tensor = make(cls, data, requires_grad)
        if cls is not torch.nn.Parameter and type(new) is Tensor:
            new.__class__ = CLASSES.on_device(cls)
        return new

    return __new__


def lazy(make: Any) -> Any:
    """`__new__` of an uninitialized parameter or buffer, which does not support tensors of the device."""

    @opaque
    def new(cls: Any, requires_grad: Any = None, device: Any = None, dtype: Any = None, **options: Any) -> Any:
        given = {} if requires_grad is None else {"requires_grad": requires_grad}
        empty = torch.empty(0, device=device, dtype=dtype) if cls in _LAZY else None
        if not isinstance(empty, Tensor):
            return make(cls, **given, device=device, dtype=dtype, **options)
        if cls is torch.nn.UninitializedParameter:
            return UninitializedParameter(**({"requires_grad": True} | given), device=empty.device, dtype=dtype)
        buffer = empty.requires_grad_(bool(requires_grad)).as_subclass(cls)
        buffer.persistent, buffer._is_buffer = options.get("persistent", True), True
        return buffer

    return new


def storage(make: Any) -> Any:
    """`UntypedStorage.__new__`, which would end the process for a device without an allocator in C++."""

    @opaque
    def new(cls: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is not None and cls is torch.UntypedStorage and torch.device(device).type == "jax":
            return JaxStorage(*args, device=device)
        return make(cls, *args, **({} if device is None else {"device": device}), **options)

    return new


def to_dlpack(known: Any) -> Any:
    """`torch.utils.dlpack.to_dlpack`, whose C++ implementation would find no memory."""
    return lambda tensor: tensor.__dlpack__() if isinstance(tensor, Tensor) else known(tensor)
