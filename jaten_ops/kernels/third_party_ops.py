"""Kernels of operators that other libraries define, and torch in its compiler, with their schemas."""

from __future__ import annotations

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast
from .ragged import by_group, over_group


@kernel("transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
def grouped_mm_fallback(input, weight, offs):
    """The rows of each expert times its matrix: transformers compiles a mixture of experts to it unless in bfloat16."""
    return cast(by_group(input, weight, offs), input.dtype)


@kernel(
    "transformers::grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output)"
    " -> (Tensor, Tensor)"
)
def grouped_mm_fallback_backward(input, weight, offs, grad_output):
    """Its gradients with respect to the rows and the matrices."""
    to_rows = by_group(grad_output, weight.swapaxes(1, 2), offs)
    return cast(to_rows, input.dtype), cast(over_group(input, grad_output, offs), weight.dtype)


@kernel("prims::fma(Tensor a, Tensor b, Tensor c) -> Tensor")
def fma(a, b, c):
    """a * b + c, to which Dynamo decomposes `addcmul` and `lerp` of numbers."""
    return a * b + c
