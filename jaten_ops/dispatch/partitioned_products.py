"""Compositions that merge dimensions, for tensors over a mesh: operators in which every dimension stays apart.

ATen makes one dimension of all that a product keeps, and `instance_norm` of batch and channels. XLA can leave it
partitioned only if the first of them alone is, and gathers the tensor otherwise: batch and heads, or batch and
sequence, or a batch that is not the first dimension.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import autograd
from ..arrays import partitioned, strided_elements
from ..kernels import matmul as kernels
from ..ops.user_ops import op
from ..registry import fake
from ..registry.handlers import Handler, handler
from .operands import is_on_jax

_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd

op("jaten_nn::linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor", differentiable=("input", "weight", "bias"))(
    kernels.affine
)
op("jaten_nn::product(Tensor self, Tensor other) -> Tensor", differentiable=("self", "other"))(kernels.product)
op(
    "jaten_nn::bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias) -> Tensor",
    differentiable=("input1", "input2", "weight", "bias"),
)(kernels.bilinear_form)


# Of the kernels, traced on sizes, the fakes would make numbers of sizes that are dynamic


@fake("jaten_nn::product")
def fake_product(self: Tensor, other: Tensor) -> Tensor:
    columns = other.shape[-1:] if other.dim() > 1 else ()
    return self.new_empty((*torch.broadcast_shapes(self.shape[:-2], other.shape[:-2]), self.shape[-2], *columns))


@fake("jaten_nn::linear")
def fake_linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


@fake("jaten_nn::bilinear")
def fake_bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return input1.new_empty((*input1.shape[:-1], weight.shape[0]))


def _suit(*tensors: Any) -> bool:
    """True for floating-point tensors of the device, of one dtype, in a process that has had tensors over a mesh."""
    if not partitioned.MET or autograd.is_transformed():
        return False
    return all(is_on_jax(t) and t.is_floating_point() and t.dtype == tensors[0].dtype for t in tensors)


def matmul_over_mesh(self: Tensor, other: Tensor) -> Tensor:
    """One operator if ATen would make one dimension of several, else its composition, which also refuses."""
    if _are_tensors(self, other) and _folds(self.shape, other.shape) and _suit(self, other):
        return torch.ops.jaten_nn.product(self, other)
    composition: Any = torch.ops.aten.matmul.default
    return composition._op_dk(_IMPLICIT, self, other)


def _are_tensors(*values: Any) -> bool:
    return all(isinstance(v, torch.Tensor) for v in values)


def _folds(a: torch.Size, b: torch.Size) -> bool:
    """True for shapes of which ATen would make one dimension of several."""
    folds = len(a) > 2 and (len(b) in (1, 2) or (len(b) > 2 and max(len(a), len(b)) > 3))
    return folds and a[-1] == b[max(len(b) - 2, 0)] and _broadcast(a[:-2], b[:-2])


def _broadcast(a: torch.Size, b: torch.Size) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def linear_over_mesh(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One operator for inputs of three or more dimensions, else ATen's composition, which also refuses.

    A matrix that is a view, in which dimensions are merged, is taken apart for it, as in `nn.MultiheadAttention`.
    """
    composition: Any = torch.ops.aten.linear.default
    if not _are_tensors(input, weight):
        return composition._op_dk(_IMPLICIT, input, weight, bias)
    lead = _merged(input) if input.dim() == 2 else None
    if lead is not None:
        return linear_over_mesh(input.view(*lead, -1), weight, bias).flatten(0, -2)
    biases = [] if bias is None else [bias]
    sizes = [tuple(b.shape) for b in biases]
    known = input.dim() > 2 and weight.dim() == 2 and input.shape[-1] == weight.shape[1]
    if not known or sizes not in ([], [(weight.shape[0],)]) or not _suit(input, weight, *biases):
        return composition._op_dk(_IMPLICIT, input, weight, bias)
    return torch.ops.jaten_nn.linear(input, weight, bias)


def _merged(matrix: Tensor) -> list[int] | None:
    """The dimensions of which the rows of a matrix are made, if it is another view of a tensor with more of them."""
    base = matrix._base
    if base is None or base.dim() < 3 or base.numel() != matrix.numel() or not matrix.numel():
        return None
    if not base.is_contiguous() or not matrix.is_contiguous():
        return None
    rows = list(itertools.accumulate(base.shape, operator.mul))
    at = rows.index(matrix.shape[0]) if matrix.shape[0] in rows else 0
    return [*base.shape[: at + 1]] if at else None


@handler("aten::reshape")
def reshape(self: Tensor, shape: Sequence[int]) -> Tensor:
    """ATen's composition, but of what it copies a view, by which `linear` tells which dimensions are merged."""
    composition: Any = torch.ops.aten.reshape.default
    if self.is_contiguous() or not _suit(self):
        return composition._op_dk(_IMPLICIT, self, shape)
    self = _apart(self)
    if self.dim() > 2 and len(shape) == 2:
        try:
            return self.view(shape)
        except (RuntimeError, ValueError):  # of a placeholder
            return self.contiguous().view(shape)
    return composition._op_dk(_IMPLICIT, self, shape)


def _apart(tensor: Tensor) -> Tensor:
    """A tensor, with the dimensions apart that another view of a tensor has merged, such as batch and heads."""
    base = tensor._base
    if base is None or base.numel() != tensor.numel() or not tensor.numel() or not base.is_contiguous():
        return tensor
    order = sorted([d for d in range(tensor.dim()) if tensor.shape[d] > 1], key=tensor.stride, reverse=True)
    sizes = [tensor.shape[d] for d in order]
    if any(not isinstance(n, int) for n in (*base.shape, *sizes)):
        return tensor
    spans = [*itertools.accumulate(reversed(sizes), operator.mul, initial=1)][:-1]
    parts = strided_elements.factors(tuple(base.shape), sizes)
    if parts is None or [tensor.stride(d) for d in reversed(order)] != spans or max(map(len, parts), default=0) < 2:
        return tensor
    found = dict(zip(order, parts, strict=True))
    return tensor.view([n for d in range(tensor.dim()) for n in found.get(d, (1,))])


@handler("aten::bilinear")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One operator for inputs of three or more dimensions, else ATen's composition, which also refuses."""
    biases = [] if bias is None else [bias]
    sizes = (weight.shape[0], input1.shape[-1], input2.shape[-1]) if input1.dim() > 2 and input2.dim() else ()
    known = input1.shape[:-1] == input2.shape[:-1] and tuple(weight.shape) == sizes
    if not known or any(b.shape != weight.shape[:1] for b in biases) or not _suit(input1, input2, weight, *biases):
        composition: Any = torch.ops.aten.bilinear.default
        return composition._op_dk(_IMPLICIT, input1, input2, weight, bias)
    return torch.ops.jaten_nn.bilinear(input1, input2, weight, bias)


@handler("aten::instance_norm")
def instance_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """`group_norm` with groups of one channel: ATen makes one dimension of batch and channels for `batch_norm`."""
    given = [t for t in (weight, bias, running_mean, running_var) if t is not None]
    if use_input_stats and running_mean is running_var is None and input.dim() > 2 and _suit(input, *given):
        return torch.ops.aten.group_norm.default(input, input.shape[1], weight, bias, eps)
    composition: Any = torch.ops.aten.instance_norm.default
    statistics = (running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled)
    return composition._op_dk(_IMPLICIT, input, weight, bias, *statistics)


OVER_A_MESH: dict[str, Handler] = {
    "bilinear": bilinear, "reshape": reshape, "instance_norm": instance_norm,
}  # fmt: skip
"""The handlers, which stand above autograd from the first tensor over a mesh on: a call costs microseconds."""
