"""`rms_norm` on the device `jax`: one operator, and one for its gradients, where ATen has seven and about twenty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import normalization as kernels
from ..ops.user_ops import op
from ..registry import fake
from ..registry.handlers import ABOVE_AUTOGRAD, handler
from .operands import FLOATS, are_eager

op(
    "jaten_nn::rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float eps) -> Tensor",
    differentiable=("input", "weight"),
    static=("normalized_shape",),
)(kernels.by_root_mean_square)


@fake("jaten_nn::rms_norm")
def fake_rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(input)


@handler("aten::rms_norm", keys=(ABOVE_AUTOGRAD,))
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """One operator for contiguous tensors of one dtype, else ATen's composition, which also refuses."""
    given = [input] if weight is None else [input, weight]
    if not (are_eager(*given) and _fit(given, tuple(normalized_shape))):
        composition: Any = torch.ops.aten.rms_norm.default
        key = torch._C.DispatchKey.CompositeImplicitAutograd
        return composition._op_dk(key, input, normalized_shape, weight, eps)  # type: ignore[no-any-return]  # Any
    if eps is None:  # of the dtype in which ATen computes
        eps = torch.finfo(torch.float64 if input.dtype is torch.float64 else torch.float32).eps
    return torch.ops.jaten_nn.rms_norm(input, normalized_shape, weight, eps)


def _fit(given: Sequence[Tensor], sizes: tuple[int, ...]) -> bool:
    input = given[0]
    if not sizes or input.shape[-len(sizes) :] != sizes or not (input.is_contiguous() and input.numel()):
        return False
    return input.dtype in FLOATS and all(t.dtype is input.dtype and t.shape == sizes for t in given[1:])
