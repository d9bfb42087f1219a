"""Quotients, rounded correctly whatever XLA knows of the divisor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

_EDGES = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-20, 1e30, 1.0, -1.0, 49.0, -7.0, 1 / 3]
_DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
_FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda x, y: x / y[:, None],
    "columns": lambda x, y: x / y,
    "summed": lambda x, y: (x / y[:, None]).sum(-1),
    "of one": lambda x, y: x[:1] / y[:, None],
    "floor": lambda x, y: torch.div(x, y[:, None], rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}

_WHOLE = ("floor", "trunc")  # in half precision ATen rounds before it takes the whole number
_CASES = [(form, dtype) for form in _FORMS for dtype in _DTYPES if dtype.itemsize > 2 or form not in _WHOLE]


@pytest.fixture(params=["eager", "compiled"])
def as_called(request: pytest.FixtureRequest) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    def called(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        if request.param == "compiled":
            torch.compiler.reset()
            return torch.compile(fn, backend="jaten")
        return lambda *xs: fn(*(x.to("jax") for x in xs)).cpu()

    return called


@pytest.mark.parametrize(("form", "dtype"), _CASES)
def test_edges(form: str, dtype: torch.dtype, as_called: Callable[..., Callable[..., torch.Tensor]]) -> None:
    y = torch.tensor(_EDGES, dtype=dtype)
    x = y[:, None].repeat(1, len(_EDGES))
    found, expected = as_called(_FORMS[form])(x, y), _FORMS[form](x, y)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)
    zero = expected == 0
    assert torch.equal(found.signbit()[zero], expected.signbit()[zero])


def test_rounding(as_called: Callable[..., Callable[..., torch.Tensor]]) -> None:
    x = torch.arange(1.0, 5001)[:, None].repeat(1, 64)
    assert (as_called(lambda x: x / x[:, :1])(x) == 1).all()
    assert torch.equal(as_called(lambda x: x / 49)(x), x / 49)


def test_gradients() -> None:
    x, y = torch.randn(64, 32, requires_grad=True), torch.rand(64, 1).add(0.5).requires_grad_()

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x / y).sin()

    torch.compiler.reset()
    found = torch.autograd.grad(torch.compile(fn, backend="jaten")(x, y).sum(), (x, y))
    torch.testing.assert_close(found, torch.autograd.grad(fn(x, y).sum(), (x, y)))
    on_jax = [t.detach().to("jax").requires_grad_() for t in (x, y)]
    fn(*on_jax).sum().backward()
    torch.testing.assert_close([t.grad.cpu() for t in on_jax], list(found))
