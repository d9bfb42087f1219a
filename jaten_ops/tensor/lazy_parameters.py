"""Uninitialized parameters and buffers of lazy modules on the device `jax`."""

from __future__ import annotations

from typing import Any

import torch

from ..arrays.attributes import DICTIONARY
from ..tracing import opaque_methods
from .tensor import CLASSES, Tensor


@opaque_methods
class UninitializedParameter(torch.nn.UninitializedParameter, Tensor):
    """A parameter of a lazy module."""

    __dict__ = DICTIONARY
    cls_to_become = Tensor  # type: ignore[assignment]  # the class of materialized parameters, too

    @staticmethod
    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        empty = torch.empty(0, device=device or "jax", dtype=dtype)
        return torch.nn.Parameter(empty, requires_grad).as_subclass(torch.nn.UninitializedParameter)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.nn.UninitializedParameter, (self.requires_grad,)  # as torch's, but with the device


@opaque_methods
class UninitializedBuffer(torch.nn.UninitializedBuffer, Tensor):
    """A buffer of a lazy module."""

    __dict__ = DICTIONARY
    cls_to_become = Tensor

    __new__ = Tensor.__new__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # as torch's
        result = super().__torch_function__(func, types, args, kwargs)
        moved = isinstance(result, torch.Tensor) and not isinstance(result, torch.nn.UninitializedBuffer)
        return result.as_subclass(torch.nn.UninitializedBuffer) if moved else result

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        new = memo[id(self)] = Tensor.__deepcopy__(self, memo)
        new.__class__ = UninitializedBuffer
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.nn.UninitializedBuffer, (self.requires_grad,)


_LAZY = {torch.nn.UninitializedParameter: UninitializedParameter, torch.nn.UninitializedBuffer: UninitializedBuffer}


def register_lazy_classes() -> None:
    """Makes these the classes on the device of the parameters and buffers of lazy modules, such as `nn.LazyLinear`."""
    for cls, counterpart in _LAZY.items():
        CLASSES.add(cls, counterpart)
