"""`matmul` and `linear` of tensors over a mesh: one operator, in which every dimension stays apart.

ATen makes one dimension of all that a product keeps. XLA can leave it partitioned only if the first of them alone is,
and gathers the tensor otherwise: batch and heads, or batch and sequence, or a batch that is not the first dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import autograd
from ..arrays import partitioned
from ..kernels import matmul as kernels
from ..ops.user_ops import op
from ..registry.handlers import Handler, handler
from .operands import is_on_jax

_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd

op("jaten_nn::product(Tensor self, Tensor other) -> Tensor", differentiable=("self", "other"))(kernels.product)
op("jaten_nn::linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor", differentiable=("input", "weight", "bias"))(
    kernels.affine
)


def _suit(*tensors: Any) -> bool:
    """True for floating-point tensors of the device, of one dtype, in a process that has had tensors over a mesh."""
    if not partitioned.MET or autograd.is_transformed():
        return False
    return all(is_on_jax(t) and t.is_floating_point() and t.dtype == tensors[0].dtype for t in tensors)


@handler("aten::matmul")
def matmul(self: Tensor, other: Tensor) -> Tensor:
    """One operator if ATen would make one dimension of several, else its composition, which also refuses."""
    a, b = self.shape, other.shape
    folds = len(a) > 2 and (len(b) in (1, 2) or (len(b) > 2 and max(len(a), len(b)) > 3))
    if not folds or a[-1] != b[max(len(b) - 2, 0)] or not _suit(self, other) or not _broadcast(a[:-2], b[:-2]):
        composition: Any = torch.ops.aten.matmul.default
        return composition._op_dk(_IMPLICIT, self, other)
    return torch.ops.jaten_nn.product(self, other)


def _broadcast(a: torch.Size, b: torch.Size) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


@handler("aten::linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One operator for inputs of three or more dimensions, else ATen's composition, which also refuses."""
    biases = [] if bias is None else [bias]
    sizes = [tuple(b.shape) for b in biases]
    known = input.dim() > 2 and weight.dim() == 2 and input.shape[-1] == weight.shape[1]
    if not known or sizes not in ([], [(weight.shape[0],)]) or not _suit(input, weight, *biases):
        composition: Any = torch.ops.aten.linear.default
        return composition._op_dk(_IMPLICIT, input, weight, bias)
    return torch.ops.jaten_nn.linear(input, weight, bias)


OVER_A_MESH: dict[str, Handler] = {"matmul": matmul, "linear": linear}
"""The handlers, which stand above autograd from the first tensor over a mesh on: a call costs microseconds."""
