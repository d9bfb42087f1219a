"""Where tensors lie in memory: operators that read beyond their operand, and those that write over one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .tracing import opaque


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


def as_it_lies(op: Callable[..., Any], flip: Callable[..., Any], compute: Callable[..., Any]) -> Callable[..., Any]:
    """`as_strided` of a lazily conjugated or negated tensor: what lies in its memory, conjugated or negated.

    Torch would first copy the tensor's own elements, and the memory around them would be lost.

    Args:
        op: `as_strided`.
        flip: takes off the tensor's bit.
        compute: does to the values what the bit says.
    """

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return compute(op(flip(self), *args, **kwargs))

    return call
