"""Fakes of operators for which ATen's meta functions find another dtype than its kernels on the CPU, or refuse one."""

from __future__ import annotations

from typing import Any

import torch

from jaten_ops.registry import fake

from .reuse import as_contiguous, aten_overload


@fake("ldexp.Tensor")
def ldexp(self, other):
    is_whole = not (self.is_floating_point() or self.is_complex())
    if is_whole and other.dim() == 0 and other.dtype in (torch.float16, torch.bfloat16):
        # ATen's meta function says float32, its kernel computes this
        return as_contiguous(torch.ops.aten.mul(self, torch.ops.aten.pow(2.0, other)))
    return as_contiguous(torch.ops.aten.ldexp.Tensor(self, other))


@fake("pow.Tensor_Scalar")  # the exponents True and False leave masks masks; ATen's meta function says int64
def pow_scalar(self, exponent):
    if self.dtype == torch.bool and isinstance(exponent, bool):
        return as_contiguous(self)
    return as_contiguous(torch.ops.aten.pow(self, exponent))


def _shift(name: str) -> None:
    """ATen's meta functions refuse masks, which its kernels take beside integers."""

    def run(self: torch.Tensor, other: Any) -> torch.Tensor:
        return as_contiguous(getattr(torch.ops.aten, f"bitwise_{name}_shift")(self, other))

    fake(f"__{name[0]}shift__.Tensor", f"__{name[0]}shift__.Scalar")(run)


for _direction in ("left", "right"):
    _shift(_direction)


# The dtype of these losses is that of self on CPU; ATen's meta functions promote.


@fake("soft_margin_loss")
def soft_margin_loss(self, target, reduction=1):
    return torch.ops.aten.soft_margin_loss(self, target.to(self.dtype), reduction)


@fake("huber_loss")
def huber_loss(self, target, reduction=1, delta=1.0):
    return torch.ops.aten.huber_loss(self, target.to(self.dtype), reduction, delta)


@fake("binary_cross_entropy")  # ATen's meta function takes the weight's dtype into account
def binary_cross_entropy(self, target, weight=None, reduction=1):
    op = aten_overload("binary_cross_entropy")
    assert op is not None
    return as_contiguous(op(self, target, weight, reduction)).to(self.dtype)


@fake("normal.Tensor_Tensor")  # ATen's meta function promotes mean and std; its kernel keeps the dtype of mean
def normal_tensors(mean, std, *, generator=None):
    return mean.new_empty(torch.broadcast_shapes(mean.shape, std.shape))


def _spaced(overload: str) -> None:
    """A range between complex tensors, for which ATen's meta function makes a real result."""
    op = aten_overload(overload)
    assert op is not None

    def run(start: Any, end: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dtype") is None and any(isinstance(x, torch.Tensor) and x.is_complex() for x in (start, end)):
            kwargs = kwargs | {"dtype": torch.get_default_dtype().to_complex()}
        return as_contiguous(op(start, end, *args, **kwargs))

    fake(overload)(run)


for _name in ("linspace", "logspace"):
    for _kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        _spaced(f"{_name}.{_kind}")
