"""Factories on the device `jax`: `empty` and similar, and torch's entry for operators without tensor arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..arrays import carrier, uninitialized_values
from ..arrays.observers import OBSERVERS, met
from ..arrays.storage_views import View
from ..arrays.strides import extent
from ..arrays.view_ops import strides_in_format
from ..ops.namespace import operator_of
from ..registry.handlers import HANDLERS, Handler, handler
from ..tensor.operand_values import is_traced
from ..tensor.tensor import from_view
from ..tracing import out_of_sight
from .functional import functional
from .operands import is_on_jax
from .writes import variant


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> torch.Tensor:
    empty = functional("empty.memory_format")([0], **options)
    if is_traced(empty):
        return functional("empty_strided")(size, stride, **options)
    if not is_on_jax(empty):  # the call named another device
        return torch.ops.aten.empty_strided(size, stride, **options)
    with out_of_sight():
        torch.empty_strided(size, stride, device="meta")  # it raises for invalid sizes and strides
    shape, strides = tuple(size), tuple(stride)
    if needed := extent(shape, strides):
        empty = functional("empty.memory_format")([needed], **options)
    return from_view(View(carrier.view_of(empty).storage, shape, strides, 0), empty.dtype)


def _new_empty_strided(like: torch.Tensor, size: Sequence[int], stride: Sequence[int], **options: Any) -> torch.Tensor:
    if is_traced(like):  # from the operand: autograd calls it where no mode would make a new tensor a fake one
        return functional("new_empty_strided")(like, size, stride, **options)
    return _empty_strided(size, stride, **({"dtype": like.dtype, "device": like.device} | options))


def _empty(size: Sequence[int], *, memory_format: Any = None, **options: Any) -> torch.Tensor:
    if memory_format in (None, torch.contiguous_format):
        return functional("empty.memory_format")(size, **options)
    return _empty_strided(size, strides_in_format(memory_format, size), **options)


def _empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> torch.Tensor:
    laid_out = torch.empty_permuted(tuple(size), tuple(physical_layout), device="meta")
    return _empty_strided(size, laid_out.stride(), **options)


_MADE: dict[str, Callable[..., torch.Tensor]] = {
    "empty.memory_format": _empty,
    "empty_permuted": _empty_permuted,
    "empty_strided": _empty_strided,
    "new_empty_strided": _new_empty_strided,
}


def _unwritten(overload: str) -> Callable[..., torch.Tensor]:
    """An operator with uninitialized results, filled if torch is set to. In compiled programs the backend does that."""

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        result = (_MADE.get(overload) or functional(overload))(*args, **kwargs)
        if uninitialized_values.is_filled() and not is_traced(result):
            # not by the dispatcher, from which torch.tensor hides its result
            variant("fill_.Scalar")(result, uninitialized_values.value_of(result.dtype))
        return result

    return call


for _overload in sorted(uninitialized_values.OVERLOADS):
    handler(f"aten::{_overload}")(_unwritten(_overload))


def factory(overload: str) -> Handler:
    """The function that torch's dispatcher calls for an operator without tensor arguments."""
    op, own = operator_of(overload, "aten"), HANDLERS.get(f"aten::{overload}")

    def make(*args: Any, **kwargs: Any) -> Any:
        if OBSERVERS:
            args, kwargs = met(op, args, kwargs)  # type: ignore[assignment]  # any sequence will do
        return (own.run if own else functional(overload))(*args, **kwargs)

    return make
