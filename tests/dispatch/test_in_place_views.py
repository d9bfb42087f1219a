"""In-place view operators of tensors that have views, and gradients through both, compared with the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jaten_ops.errors import UnsupportedInputError

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def _grads_of_view(y: torch.Tensor, w: torch.Tensor) -> Any:
    v = y[0]
    y.t_()
    return (v * w[0]).sum()


def _write_after(y: torch.Tensor, w: torch.Tensor) -> Any:
    v = y[0]
    y.t_()
    y.mul_(w)
    return (v * w[0]).sum()


def _write_through_view(y: torch.Tensor, w: torch.Tensor) -> Any:
    v = y[0]
    y.unsqueeze_(0)
    v.mul_(2)
    return (y * w).sum()


def _views_before_and_after(y: torch.Tensor, w: torch.Tensor) -> Any:
    before = y[0]
    y.transpose_(0, 1)
    return (y[0] * w[0] + before * w[1]).sum()


def _of_view(y: torch.Tensor, w: torch.Tensor) -> Any:
    v = y[0:2]
    u = v[0]
    v.t_()
    u.mul_(2)
    return (u * w[1]).sum() + (y * w).sum() + (v * w[:, :2]).sum()


def _chain(y: torch.Tensor, w: torch.Tensor) -> Any:
    v = y[0]
    y.squeeze_()
    y.transpose_(-1, -2)
    y.swapdims_(0, 1).unsqueeze_(-1)
    v.add_(1)
    return (y * w[..., None]).sum() * v.sum()


def _with_alias(y: torch.Tensor, w: torch.Tensor) -> Any:
    same = y.detach()
    y.t_()
    return (y * w).sum() + same.sum()


def _second(y: torch.Tensor, w: torch.Tensor) -> Any:
    v = y[0]
    y.t_()
    return (y * w * v).pow(3).sum()


PROGRAMS = [
    _grads_of_view, _write_after, _write_through_view, _views_before_and_after, _of_view, _chain, _with_alias, _second,
]  # fmt: skip


def _ran(program: Program, device: str) -> list[Any]:
    x, w = torch.arange(9.0, device=device).reshape(3, 3).requires_grad_(), torch.arange(1.0, 10.0, device=device)
    y, seen = x * 2, []
    y.register_hook(lambda grad: seen.append(grad.cpu()))
    y.note = "kept"  # type: ignore[attr-defined]  # a program's attribute
    (first,) = torch.autograd.grad(program(y, w.reshape(3, 3)), x, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), x)[0] if first.requires_grad else None
    return [first, second, *seen, y, y._version, y.stride(), y.note]  # type: ignore[attr-defined]


@pytest.mark.parametrize("program", PROGRAMS)
def test_views_keep_their_gradients(program: Program) -> None:
    for got, want in zip(_ran(program, "jax"), _ran(program, "cpu"), strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got.detach().cpu(), want.detach())
        else:
            assert got == want


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "a leaf": lambda x: x.t_(),
    "a view of a leaf": lambda x: x[:2].t_(),
    "one of several views": lambda x: (x * 2).unbind()[0].unsqueeze_(0),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_refused_as_by_aten(program: Callable[[torch.Tensor], Any]) -> None:
    errors = []
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError) as caught:
            program(torch.ones(3, 3, device=device, requires_grad=True))
        errors.append(str(caught.value).split("in-place")[-1])
    assert errors[0] == errors[1]


def test_a_tensor_that_retains_its_gradient() -> None:
    y = torch.ones(2, 2, device="jax", requires_grad=True) * 2
    y.retain_grad()
    y.t_()  # without views it may be changed
    kept = y[0]
    with pytest.raises(UnsupportedInputError, match=r"y = y\.t\(\)"):
        y.t_()
    assert kept.shape == (2,)


def test_a_saved_value_that_was_changed_is_an_error() -> None:
    y = torch.ones(2, 2, device="jax", requires_grad=True) * 2
    kept, result = y[0], y.sin()
    y.t_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (result.sum() + kept.sum()).backward()
