"""Tensors without their values: what a condition on a call may see of its arguments."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedInputError

_TOLD = frozenset({
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "itemsize", "nbytes", "is_sparse", "is_quantized",
    "dim", "size", "numel", "nelement", "stride", "storage_offset", "element_size", "is_contiguous",
    "is_floating_point", "is_complex", "is_signed", "type",
})  # fmt: skip


class Described:
    """A tensor's shape, strides, dtype, device and class; anything else is an error.

    For `isinstance` it is of the tensor's class.
    """

    __slots__ = ("_of",)

    def __init__(self, of: torch.Tensor) -> None:
        self._of = of

    @property
    def __class__(self) -> Any:
        return self._of.__class__

    @__class__.setter
    def __class__(self, cls: Any) -> None:
        raise TypeError("the class of an argument cannot be changed")

    def __getattr__(self, name: str) -> Any:
        if name in _TOLD or name in getattr(type(self._of), "__annotations__", ()):
            return getattr(self._of, name)
        raise self._refusal(name)

    def __len__(self) -> int:
        return len(self._of)

    def __bool__(self) -> bool:
        raise self._refusal("its value as a bool")

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self._of.shape))
        return f"{str(self._of.dtype).removeprefix('torch.')}[{sizes}] on {self._of.device}"

    def _refusal(self, name: str) -> UnsupportedInputError:
        return UnsupportedInputError(
            "a condition on the arguments of a call",
            f"{name} of a tensor",
            "its shape, strides, dtype, device or class",
        )


def described(value: Any) -> Any:
    """An argument with each tensor in it described."""
    if isinstance(value, torch.Tensor):
        return Described(value)
    return tuple(map(described, value)) if isinstance(value, list | tuple) else value
