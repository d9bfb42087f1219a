"""Overrides for tensors of subclasses: of classes alone, and of those that wrap others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jaten_ops

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_override_left")


class _Marked(Tensor):
    pass


def test_subclasses() -> None:
    x = torch.ones(2, device="jax").as_subclass(_Marked)
    override = jaten_ops.override(
        "add.Tensor",
        kernel=lambda self, other, *, alpha: self + other + 10,
        when=lambda self, other, *, alpha: isinstance(self, _Marked),
    )
    with override:
        for run in (lambda x: x + x, torch.compile(lambda x: x + x, backend="jaten")):
            assert run(x)[0].item() == 12 and isinstance(run(x), _Marked)
            assert run(torch.ones(2, device="jax"))[0].item() == 2


class _Scaled(Tensor):
    """Values times a scale."""

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor) -> _Scaled:
        return Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype, device=values.device)

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self.values, self.scale = values, scale

    def __repr__(self) -> str:  # torch's log of what it traces asks for it
        return "_Scaled()"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> _Scaled:
        return _Scaled(inner["values"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return _Scaled(args[0].values, args[0].scale)
        return func(*(a.values * a.scale if isinstance(a, _Scaled) else a for a in args), **(kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


def _ways_of(function: Callable[..., Any], device: str) -> list[Callable[..., Any]]:
    compiled = torch.compile(function, backend="jaten", fullgraph=True)
    return [compiled, function] if device == "jax" else [compiled]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_subclasses_that_wrap_others(device: str) -> None:
    def scaled() -> _Scaled:
        return _Scaled(torch.tensor([1, 2], dtype=torch.int8, device=device), torch.tensor(0.5, device=device))

    sums = jaten_ops.override(
        "add.Tensor",
        kernel=lambda self, other, *, alpha: self.replace(values=self.values + alpha * other.values),
        when=lambda self, other, *, alpha: isinstance(self, _Scaled) and isinstance(other, _Scaled),
    )
    products = jaten_ops.override(
        "mul.Tensor",
        kernel=lambda self, other: 10 * self.values * self.scale * other,
        gradient=lambda grads, args, results: {"self": grads[0] * args[1], "other": grads[0] * args[0].scale},
        when=lambda self, other: isinstance(self, _Scaled),
    )
    with sums:
        for run in _ways_of(lambda x: x + x, device):
            total = run(scaled())
            assert type(total) is _Scaled and total.values.tolist() == [2, 4] and total.scale.item() == 0.5
    with products:
        for run in _ways_of(lambda x, y: x * y, device):
            x, y = scaled().requires_grad_(), torch.full((2,), 3.0, device=device, requires_grad=True)
            result = run(x, y)
            result.sum().backward()
            assert result.tolist() == [15, 30] and x.grad.tolist() == [3, 3] and y.grad.tolist() == [0.5, 0.5]
