"""The gradient of maximum pooling: each element asks its windows, or, with many of them, is found by its index."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jaten_ops  # noqa: F401  # the device jax

# kernel, stride, padding, dilation, ceil_mode
SETTINGS = [
    (2, 2, 0, 1, False),
    (3, 2, 1, 1, False),
    (3, 1, 1, 1, False),
    (2, 3, 1, 1, True),
    (3, 2, 1, 2, True),
    (4, 2, 2, 1, True),
    (5, 1, 2, 1, False),
    ((3, 2), (2, 1), (1, 0), (1, 2), False),
]
SHAPES = [(2, 3, 13, 10), (0, 3, 13, 10), (3, 9, 12), (2, 2, 7, 8, 6)]


CASES = [(h, s) for h, s in itertools.product(SHAPES, SETTINGS) if len(h) < 5 or isinstance(s[0], int)]


@pytest.mark.parametrize(("shape", "settings"), CASES, ids=repr)
def test_gradient(shape: tuple[int, ...], settings: tuple[Any, ...]) -> None:
    """Of whole numbers, among which many are equal: the same element gets each gradient, in the same order."""
    pool = F.max_pool3d if len(shape) == 5 else F.max_pool2d
    torch.manual_seed(0)
    x = torch.randint(-3, 4, shape).float()
    x[..., 0] = float("nan")
    x, on_jax = x.requires_grad_(), x.to("jax").requires_grad_()
    out = pool(x, *settings)
    grad = torch.randn(out.shape)
    (expected,) = torch.autograd.grad(out, x, grad)
    (got,) = torch.autograd.grad(pool(on_jax, *settings), on_jax, grad.to("jax"))
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)
