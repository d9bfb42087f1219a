"""Operators that depend on memory layout: those that read beyond their operand or keep its order in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import UnsupportedInputError
from ..tracing import opaque, out_of_sight


def on_memory(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `as_strided`, given all of the operand's memory if the operand's own elements are not enough."""

    @opaque
    def call(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
        start = 0 if storage_offset is None else storage_offset - self.storage_offset()
        last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=False))
        if self.is_contiguous() and start >= 0 and last < self.numel():
            return plain(self, size, stride, start)
        elements = self.untyped_storage().nbytes() // self.itemsize
        memory = self.new_empty(0).set_(self.untyped_storage(), 0, (elements,), (1,))
        return plain(memory, size, stride, start + self.storage_offset())

    return call


def within_memory(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `as_strided_scatter`, which writes to a copy of the operand's elements, and not beyond them.

    Raises:
        UnsupportedInputError: the operand's elements are not those of its memory, in their order.
    """

    @opaque
    def call(
        self: torch.Tensor, src: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None
    ) -> torch.Tensor:
        if not self.is_contiguous() or (storage_offset is not None and self.storage_offset()):
            raise UnsupportedInputError(
                "the operand of as_strided_scatter", "one that begins later in memory or is not contiguous",
                "x.clone(memory_format=torch.contiguous_format) before, or ATen's operator",
            )  # fmt: skip
        return plain(self, src, size, stride, storage_offset)

    return call


def by_strides(tensor: torch.Tensor) -> list[int]:
    """The dimensions of a dense tensor, the one with the largest step through memory first."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda d: -strides[d])


def inverse_order(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def target_of_resize(operand: torch.Tensor, size: Any, memory_format: torch.memory_format | None) -> torch.Tensor:
    """A meta tensor with the layout of the result of `resize`, or of `resize_as` if the size is a tensor."""
    target = torch.empty_like(torch.empty_strided(operand.shape, operand.stride(), device="meta"))
    if not isinstance(size, torch.Tensor):
        return target.resize_(size, memory_format=memory_format)
    other = torch.empty_strided(size.shape, size.stride(), device="meta")
    return target.resize_as_(other, memory_format=memory_format)


def in_memory_order(resize: Callable[..., Any]) -> Callable[..., Any]:
    """`resize` and `resize_as` of the elements in the order in which a clone of the operand has them.

    Args:
        resize: the kernel of `resize`, of a row-major operand.
    """

    @opaque
    def call(self: torch.Tensor, size: Any, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
        with out_of_sight():
            before = by_strides(torch.empty_like(torch.empty_strided(self.shape, self.stride(), device="meta")))
            target = target_of_resize(self, size, memory_format)
        after = by_strides(target)
        return resize(self.permute(before), [target.shape[d] for d in after]).permute(inverse_order(after))

    return call


def as_it_lies(op: Callable[..., Any], flip: Callable[..., Any], compute: Callable[..., Any]) -> Callable[..., Any]:
    """`as_strided` of a lazily conjugated or negated tensor, applied to its memory and then conjugated or negated.

    Torch would first copy the tensor's own elements, and lose the memory around them.

    Args:
        op: `as_strided`.
        flip: removes the tensor's conjugate or negative bit.
        compute: conjugates or negates values.
    """

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return compute(op(flip(self), *args, **kwargs))

    return call
