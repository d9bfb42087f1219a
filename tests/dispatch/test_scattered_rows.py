"""Scatters by an index that is expanded from row numbers, on the device, as ATen's; and that they go by rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaten_ops
from jaten_ops.dispatch import scattered_rows

_RNG = torch.Generator().manual_seed(0)
_SHAPES = {"rows": ((5, 4), 0, 9), "columns": ((5, 4), -1, 3), "inner": ((3, 6, 4), 1, 7), "none": ((5, 4), 0, 0)}

_REDUCED = {
    f"{reduce}, {'with' if include_self else 'without'} itself": (reduce, include_self)
    for reduce in ("sum", "prod", "mean", "amax", "amin")
    for include_self in (True, False)
}
_CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "scatter_add": lambda x, d, i, s: x.scatter_add(d, i, s),
    "scatter_add_": lambda x, d, i, s: x.clone().scatter_add_(d, i, s),
    "scatter_reduce_": lambda x, d, i, s: x.clone().scatter_reduce_(d, i, s, "amax"),
    **{
        name: lambda x, d, i, s, reduce=reduce, own=own: x.scatter_reduce(d, i, s, reduce, include_self=own)
        for name, (reduce, own) in _REDUCED.items()
    },
}


def _case(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]:
    shape, dim, count = _SHAPES[name]
    sizes = [count if d == dim % len(shape) else n for d, n in enumerate(shape)]
    x, source = (torch.randn(*s, generator=_RNG).mul(3).to(dtype) for s in (shape, sizes))
    numbers = torch.randint(0, shape[dim], (count,), generator=_RNG)
    return x, dim, numbers, source


def _expanded(numbers: torch.Tensor, dim: int, source: torch.Tensor) -> torch.Tensor:
    return numbers.view([-1 if d == dim % source.dim() else 1 for d in range(source.dim())]).expand(source.shape)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("call", _CALLS)
def test_values(call: str, shape: str, dtype: torch.dtype) -> None:
    x, dim, numbers, source = _case(shape, dtype)
    run, index = _CALLS[call], _expanded(numbers, dim, source)
    try:
        expected = run(x, dim, index, source)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            run(x.to("jax"), dim, _expanded(numbers.to("jax"), dim, source), source.to("jax"))
        return
    found = run(x.to("jax"), dim, _expanded(numbers.to("jax"), dim, source), source.to("jax"))
    torch.testing.assert_close(found.cpu(), expected, check_stride=True)


@pytest.mark.parametrize("step", [False, True], ids=["eager", "step"])
def test_gradients(step: bool) -> None:
    x, dim, numbers, source = _case("rows", torch.float32)

    def gradient(source: torch.Tensor, numbers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found = x.scatter_add(dim, _expanded(numbers, dim, source), source).square().sum()
        return torch.autograd.grad(found, source)[0]

    expected = gradient(source.requires_grad_(), numbers, x)
    on_device = [t.detach().to("jax") for t in (source, numbers, x)]
    on_device[0].requires_grad_()
    run = jaten_ops.compile_step(gradient) if step else gradient
    torch.testing.assert_close(run(*on_device).cpu(), expected)


def test_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    original = scattered_rows._numbers_of

    def spy(*args: Any) -> torch.Tensor | None:
        numbers = original(*args)
        found.append(numbers is not None)
        return numbers

    monkeypatch.setattr(scattered_rows, "_numbers_of", spy)
    x, dim, numbers, source = (t.to("jax") if isinstance(t, torch.Tensor) else t for t in _case("rows", torch.float32))
    index = _expanded(numbers, dim, source)
    for given in (index, index.clone(), index[:, :3]):
        x.scatter_add(dim, given, source[:, : given.shape[1]])
    assert found == [True, False, False]
    x.gather(dim, index)  # elsewhere than in a backward its error for an index out of range is another
    assert len(found) == 3
    x.scatter_add(dim, index, source.requires_grad_()).sum().backward()
    assert found[3:] == [True, True]


@pytest.mark.parametrize("wrong", [7, -1])
def test_numbers_out_of_range(wrong: int) -> None:
    for device in ("cpu", "jax"):
        x, source = torch.zeros(5, 3, device=device), torch.ones(2, 3, device=device)
        index = torch.tensor([[wrong], [0]], device=device).expand(2, 3)
        with pytest.raises(RuntimeError):
            x.scatter_add(0, index, source)
        with pytest.raises(RuntimeError, match="out of bounds"):
            x.gather(0, index)
