"""Pooling over windows that are padded, overlap, leave gaps or are of several sizes, and its gradients.

Each element asks its windows for its gradient; with many of them, that of a maximum is found by its index.
"""

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


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("shape", "settings"), CASES, ids=repr)
def test_gradient_of_maximum(shape: tuple[int, ...], settings: tuple[Any, ...]) -> None:
    """Whole numbers, many of them equal: the same elements get the gradients, in the same order."""
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


ADAPTIVE = [(1, 1), (3, 2), (13, 10), (5, 20), (7, 1)]
AVERAGE: list[tuple[str, tuple[Any, ...]]] = [
    *[("avg_pool2d", (k, s, p, ceil)) for k, s, p, d, ceil in SETTINGS if d == 1],
    ("avg_pool2d", (3, 2, 1, True, False)),
    ("avg_pool2d", ((3, 17), (1, 5), (1, 8), False, True, 7)),
    *[("adaptive_avg_pool2d", (size,)) for size in ADAPTIVE],
    *[("adaptive_max_pool2d", (size,)) for size in ADAPTIVE],
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "settings"), AVERAGE, ids=repr)
def test_values_and_gradient(name: str, settings: tuple[Any, ...]) -> None:
    """An infinity or NaN stays in the windows that it is in, and so does that of a gradient."""
    pool = getattr(F, name)
    torch.manual_seed(0)
    x = torch.randn(2, 3, 13, 20)
    x[0, 0, 5, 7], x[1, 1, 12, 19] = float("inf"), float("nan")
    x, on_jax = x.requires_grad_(), x.to("jax").requires_grad_()
    expected, got = pool(x, *settings), pool(on_jax, *settings)
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
    grad = torch.randn(expected.shape)
    grad[0, 0, -1, 0], grad[1, 2, 0, -1] = float("nan"), -float("inf")
    (of_expected,) = torch.autograd.grad(expected, x, grad)
    (of_got,) = torch.autograd.grad(got, on_jax, grad.to("jax"))
    torch.testing.assert_close(of_got.cpu(), of_expected, equal_nan=True)


@pytest.mark.parametrize("shape", [(2, 3, 26, 40), (3, 1024, 2), (2, 2, 8, 8, 20)], ids=str)
def test_maximum_of_a_large_plane(shape: tuple[int, ...]) -> None:
    """Whole numbers, many of them equal: of those the first counts, and of several NaNs the last."""
    pool = F.adaptive_max_pool3d if len(shape) == 5 else F.adaptive_max_pool2d
    torch.manual_seed(0)
    x = torch.randint(-3, 4, shape).float()
    x[0, ..., -2:], x[1] = float("nan"), -float("inf")
    x, on_jax = x.requires_grad_(), x.to("jax").requires_grad_()
    expected, got = pool(x, 1, return_indices=True), pool(on_jax, 1, return_indices=True)
    for mine, atens in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), atens, rtol=0, atol=0, equal_nan=True)
    grad = torch.randn(expected[0].shape)
    (of_expected,) = torch.autograd.grad(expected[0], x, grad)
    (of_got,) = torch.autograd.grad(got[0], on_jax, grad.to("jax"))
    torch.testing.assert_close(of_got.cpu(), of_expected, rtol=0, atol=0)
