"""`linear` and `matmul` on the device `jax`: one operator, and one for the gradients, where ATen has up to fifteen.

ATen composes them from views of the operands, a product of matrices, and a view of that, which autograd differentiates
one by one. An operator costs microseconds before it computes anything.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from ..arrays import carrier
from ..arrays.storage_views import View
from ..kernels import matmul as kernels
from ..ops.user_ops import op
from ..registry.handlers import ABOVE_AUTOGRAD, handler
from ..tensor.tensor import from_view
from ..tracing import opaque
from .functional import kernel_of
from .operands import FLOATS, are_eager
from .partitioned_products import linear_over_mesh, matmul_over_mesh

op("jaten_nn::linear_gradients(Tensor grad, Tensor? input, Tensor? weight, bool bias) -> (Tensor?, Tensor?, Tensor?)")(
    kernels.affine_gradients
)
op(
    "jaten_nn::product_gradients(Tensor grad, Tensor? self, Tensor? other, int[] self_sizes, int[] other_sizes)"
    " -> (Tensor?, Tensor?)",
    static=("self_sizes", "other_sizes"),
)(kernels.product_gradients)


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [t for t in tensors if t is not None]


class _Leaf(NamedTuple):
    """A leaf of the graph that is kept for a gradient, and where its values are: ATen keeps a view of them."""

    tensor: Callable[[], Tensor | None]
    view: View


def _noted(tensor: Tensor | None) -> _Leaf | None:
    if tensor is None or not tensor.is_leaf:
        return None
    return _Leaf(weakref.ref(tensor), carrier.view_of(tensor))


def _as_noted(tensor: Tensor | None, leaf: _Leaf | None) -> Tensor | None:
    """A leaf with the values that it had, although it may have others by `tensor.data = ...`."""
    if leaf is None or tensor is None or leaf.tensor() is not tensor or carrier.view_of(tensor) is leaf.view:
        return tensor
    old = from_view(leaf.view, tensor.dtype)
    # a second derivative is by the leaf
    return old + (tensor - tensor.detach()) if torch.is_grad_enabled() else old


# Both keep for the gradients what ATen keeps: a program may overwrite the rest before it asks for them. `Function`
# itself would look for transforms of torch.func, in which ATen's compositions run


class FusedLinear(_SingleLevelFunction):
    """`input @ weight.T + bias`, for input (..., K), weight (N, K) and bias (N)."""

    @staticmethod
    @opaque
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        by_input, by_weight, _ = ctx.needs_input_grad
        kept = input if by_weight else None, weight if by_input else None
        ctx.save_for_backward(*kept)
        ctx.leaves = _noted(kept[0]) if input.dim() > 2 else None, _noted(kept[1])
        return kernel_of("jaten_nn::linear")(input, weight, bias)  # type: ignore[no-any-return]  # handlers have no types

    @staticmethod
    @opaque
    def backward(ctx: Any, grad: Tensor) -> Any:
        input, weight = map(_as_noted, ctx.saved_tensors, ctx.leaves)
        by_bias = ctx.needs_input_grad[2]
        if not torch.is_grad_enabled() and are_eager(grad, *_given(input, weight)):
            return kernel_of("jaten_nn::linear_gradients")(grad, input, weight, by_bias)
        count = math.prod(grad.shape[:-1])
        rows = grad.reshape(count, grad.shape[-1])
        return (
            None if weight is None else grad @ weight,
            None if input is None else rows.t() @ input.reshape(count, input.shape[-1]),
            rows.sum(0) if by_bias else None,
        )


class FusedProduct(_SingleLevelFunction):
    """`self @ other`, for matrices, batches of them, and a batch and a matrix."""

    @staticmethod
    @opaque
    def forward(ctx: Any, self: Tensor, other: Tensor) -> Tensor:
        by_self, by_other = ctx.needs_input_grad
        kept = self if by_other else None, other if by_self else None
        ctx.save_for_backward(*kept)
        ctx.leaves = [_noted(t) if t is not None and t.dim() > 2 else None for t in kept]
        ctx.sizes = self.shape, other.shape
        return kernel_of("jaten_nn::product")(self, other)  # type: ignore[no-any-return]  # handlers have no types

    @staticmethod
    @opaque
    def backward(ctx: Any, grad: Tensor) -> Any:
        self, other = map(_as_noted, ctx.saved_tensors, ctx.leaves)
        if not torch.is_grad_enabled() and are_eager(grad, *_given(self, other)):
            return kernel_of("jaten_nn::product_gradients")(grad, self, other, *ctx.sizes)
        return (
            None if other is None else grad @ other.mT,
            None if self is None else (self.mT @ grad).sum_to_size(ctx.sizes[1]),
        )


# the names of ATen's nodes, by which `grad_fn`, errors of `detect_anomaly` and drawings of graphs tell what they are
with contextlib.suppress(AttributeError):  # a torch without the private name keeps ours
    FusedLinear._backward_cls.__name__ = "LinearBackward0"  # type: ignore[attr-defined]  # not in its stubs
    FusedProduct._backward_cls.__name__ = "MatmulBackward0"  # type: ignore[attr-defined]  # as above


@handler("aten::linear", keys=(ABOVE_AUTOGRAD,))
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One operator for matrices and batches of them, else ATen's composition, which also refuses."""
    if not (are_eager(input, weight, *_given(bias)) and _are_matrices(input, weight) and _fit(input, weight, bias)):
        return linear_over_mesh(input, weight, bias)
    if bias is not None and input.dtype.itemsize == 2 and not input.is_contiguous():
        return linear(input, weight) + bias  # ATen rounds the product here
    input = _as_kept(input, 1)
    is_recorded = input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if is_recorded and torch.is_grad_enabled():
        return FusedLinear.apply(input, weight, bias)  # type: ignore[attr-defined, no-any-return]  # not in its stubs
    return kernel_of("jaten_nn::linear")(input, weight, bias)  # type: ignore[no-any-return]  # handlers have no types


@handler("aten::matmul", keys=(ABOVE_AUTOGRAD,))
def matmul(self: Tensor, other: Tensor) -> Tensor:
    """One operator for matrices and batches of them, else ATen's composition, which also refuses."""
    if not (are_eager(self, other) and _are_matrices(self, other) and _multiply(self, other)):
        return matmul_over_mesh(self, other)
    if other.dim() == 2 and not other.is_contiguous():
        return linear(self, other.t())
    self, other = _as_kept(self, 1 if other.dim() == 2 else 2), _as_kept(other, 2)
    if (self.requires_grad or other.requires_grad) and torch.is_grad_enabled():
        return FusedProduct.apply(self, other)  # type: ignore[attr-defined, no-any-return]  # not in its stubs
    return kernel_of("jaten_nn::product")(self, other)  # type: ignore[no-any-return]  # handlers have no types


def _are_matrices(a: Tensor, b: Tensor) -> bool:
    is_known = a.dtype in FLOATS and b.dtype is a.dtype and a.dim() > 1 and b.dim() > 1
    return is_known and a.numel() > 0 and b.numel() > 0


# Of matrices whose rows are not contiguous, and where it repeats one, ATen's gradients lie in another order in memory


def _fit(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True for sizes that ATen takes, and contiguous matrices."""
    if weight.dim() != 2 or input.shape[-1] != weight.shape[1] or not weight.is_contiguous():
        return False
    if input.dim() == 2 and not input.is_contiguous():
        return False
    return bias is None or (bias.dtype is input.dtype and bias.shape == weight.shape[:1])


def _multiply(self: Tensor, other: Tensor) -> bool:
    """True for equally many matrices, and for some and one that is contiguous or transposed, if their sizes fit."""
    a, b = self.shape, other.shape
    if a[-1] != b[-2]:
        return False
    if len(b) > 2:
        return a[:-2] == b[:-2]
    in_order = other.is_contiguous() or other.stride() == (1, b[0])
    return in_order and (len(a) > 2 or self.is_contiguous())


def _as_kept(tensor: Tensor, last: int) -> Tensor:
    """An operand as ATen keeps it for the gradient: a copy if it could not make one of the dimensions before the last.

    Args:
        tensor: the operand.
        last: how many dimensions it leaves as they are.
    """
    if tensor.dim() <= last + 1 or tensor.is_contiguous():
        return tensor
    first = [(n, s) for n, s in zip(tensor.shape[:-last], tensor.stride(), strict=False) if n > 1]
    in_order = [s for _, s in first[:-1]] == [n * s for n, s in first[1:]]
    return tensor if in_order else tensor.contiguous()
