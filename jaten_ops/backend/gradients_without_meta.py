"""Gradients for which ATen has no meta function: in compiled programs they are jaten's operators from the start.

torch runs ATen's kernel on zeros to learn what its result is like, unless a program has open sizes: then it gives up.
AOTAutograd takes these for decompositions of the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jaten_ops.meta import aten_overload
from jaten_ops.ops.namespace import operator_of

OPERATORS = (
    "multi_margin_loss_backward", "multilabel_margin_loss_backward", "fractional_max_pool3d_backward",
    "_masked_softmax_backward", "_standard_gamma_grad", "_dirichlet_grad",
    "_fake_quantize_learnable_per_tensor_affine_backward", "_fake_quantize_learnable_per_channel_affine_backward",
    "hardshrink_backward", "softshrink_backward",
)  # fmt: skip


def table() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """The operators of the installed torch among them, each with jaten's."""
    return {op: operator_of(name) for name in OPERATORS if (op := aten_overload(name)) is not None}
