"""Gradients of what is empty, for which ATen's meta functions in Python divide by the number of elements.

AOTAutograd takes them for decompositions of the operators. They leave all other calls as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jaten_ops.meta.reuse import known_true

_MEAN, _SUM = 1, 2
_aten = torch.ops.aten


def _of_loss(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The gradient of a mean of nothing, which is empty as well: that of a sum."""

    def gradient(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, *numbers: float) -> Any:
        if reduction != _MEAN or not known_true(self.numel() == 0):
            return NotImplemented
        return op(grad_output, self, target, _SUM, *numbers)

    return gradient


def _of_group_norm(
    grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: int, C: int, HxW: int,
    group: int, output_mask: list[bool]
) -> Any:  # fmt: skip
    """The gradients where a group has no elements: the weight's is NaN, as ATen's 0 times infinite statistics."""
    if not known_true(HxW * C == 0):
        return NotImplemented
    of_weight = (rstd * 0).reshape(N, group, 1).expand(N, group, C // group).reshape(N, C).sum(0)
    found = torch.empty_like(input), of_weight, torch.zeros_like(of_weight)
    return tuple(x if on else None for x, on in zip(found, output_mask, strict=True))


GRADIENTS: dict[torch._ops.OperatorBase, Callable[..., Any]] = {
    **{
        op: _of_loss(op)
        for op in (
            _aten.mse_loss_backward.default,
            _aten.smooth_l1_loss_backward.default,
            _aten.huber_loss_backward.default,
            _aten.soft_margin_loss_backward.default,
        )
    },
    _aten.native_group_norm_backward.default: _of_group_norm,
}
