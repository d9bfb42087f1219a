"""Padding and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.number_ranges import scalar
from ..kernel_base.promotion import cast, compute_type


# aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor
@kernel("constant_pad_nd")
def constant_pad_nd(self, pad, value=0):
    return lax.pad(self, scalar(value, self.dtype), [(low, high, 0) for low, high in _sides(pad, self.ndim)])


def _sides(pad: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """Amounts to pad before and after each dimension; `pad` starts with the last one."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    return [(0, 0)] * (ndim - len(pairs)) + pairs


def _reflected(x: jax.Array, before: int, after: int, dim: int) -> tuple[jax.Array | None, jax.Array | None]:
    """The two parts that reflection adds: the elements next to the edge, reversed, without the edge itself."""
    size = x.shape[dim]
    left = lax.rev(lax.slice_in_dim(x, 1, before + 1, 1, dim), [dim]) if before > 0 else None
    right = lax.rev(lax.slice_in_dim(x, size - 1 - after, size - 1, 1, dim), [dim]) if after > 0 else None
    return left, right


def _replicated(x: jax.Array, before: int, after: int, dim: int) -> tuple[jax.Array | None, jax.Array | None]:
    """The two parts that replication adds: copies of the edges."""

    def edge(at: int, count: int) -> jax.Array | None:
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
        return (
            lax.broadcast_in_dim(lax.slice_in_dim(x, at, at + 1, 1, dim), shape, range(x.ndim)) if count > 0 else None
        )

    return edge(0, before), edge(x.shape[dim] - 1, after)


_Border = Callable[[jax.Array, int, int, int], tuple[jax.Array | None, jax.Array | None]]


def _padded(x: jax.Array, padding: Sequence[int], border: _Border) -> jax.Array:
    """`x` with a border around its last dimensions; negative padding removes elements."""
    for dim, (before, after) in enumerate(_sides(padding, x.ndim)):
        left, right = border(x, before, after, dim)
        middle = lax.slice_in_dim(x, max(-before, 0), x.shape[dim] - max(-after, 0), 1, dim)
        parts = [part for part in (left, middle, right) if part is not None]
        x = lax.concatenate(parts, dim) if len(parts) > 1 else middle
    return x


# aten::{reflection_pad1d, replication_pad1d}(Tensor self, SymInt[2] padding) -> Tensor
# aten::{reflection_pad2d, replication_pad2d}(Tensor self, SymInt[4] padding) -> Tensor
# aten::{reflection_pad3d, replication_pad3d}(Tensor self, SymInt[6] padding) -> Tensor
# aten::{reflection_pad1d_backward, replication_pad1d_backward}(Tensor grad_output, Tensor self,
#     SymInt[2] padding) -> Tensor
# aten::{reflection_pad2d_backward, replication_pad2d_backward}(Tensor grad_output, Tensor self,
#     SymInt[4] padding) -> Tensor
# aten::{reflection_pad3d_backward, replication_pad3d_backward}(Tensor grad_output, Tensor self,
#     SymInt[6] padding) -> Tensor
def _register(overload: str, border: _Border) -> None:
    def forward(self, padding):
        return _padded(self, padding, border)

    def backward(grad_output, self, padding):
        dtype = compute_type(self.dtype)
        like = jax.ShapeDtypeStruct(self.shape, dtype)
        (grad,) = jax.linear_transpose(lambda x: _padded(x, padding, border), like)(cast(grad_output, dtype))
        return cast(grad, self.dtype)

    kernel(overload)(forward)
    kernel(f"{overload}_backward")(backward)


for dimensions in (1, 2, 3):
    _register(f"reflection_pad{dimensions}d", _reflected)
    _register(f"replication_pad{dimensions}d", _replicated)
