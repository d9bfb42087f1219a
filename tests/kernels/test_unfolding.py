"""Windows of tensors, in each of the forms that their sizes and steps ask for."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

_WINDOWS = {  # dimension, size, step
    "blocks that overlap": (1, 16, 8),
    "blocks side by side": (1, 8, 8),
    "blocks with others between": (1, 4, 12),
    "rows": (1, 3, 1),
    "few rows": (0, 2, 1),
    "one window": (1, 64, 5),
    "blocks of the last dimension": (2, 24, 16),
    "frames": (2, 40, 16),
    "a few elements": (2, 3, 1),
    "few windows": (2, 45, 2),
    "many of many": (2, 35, 1),
    "many rows of many": (1, 33, 1),
}


@pytest.mark.parametrize("name", _WINDOWS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_windows(name: str, compiled: bool) -> None:
    dim, size, step = _WINDOWS[name]
    plain = torch.arange(4 * 67 * 90.0).reshape(4, 67, 90)
    x = (plain if compiled else plain.to("jax")).requires_grad_()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.unfold(dim, size, step) * 2.0

    found = (torch.compile(fn, backend="jaten") if compiled else fn)(x)
    other = plain.detach().requires_grad_()
    expected = fn(other)
    assert torch.equal(found.detach().cpu(), expected.detach())
    grad = torch.randint(-4, 5, expected.shape).float()
    found.backward(grad.to(x.device))
    expected.backward(grad)
    assert x.grad is not None and other.grad is not None
    torch.testing.assert_close(x.grad.cpu(), other.grad, rtol=0, atol=0)
