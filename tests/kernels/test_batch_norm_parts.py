"""The parts of batch normalization, put together, are batch normalization in double precision. ATen has no CPU ones."""

from __future__ import annotations

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

OPS = torch.ops.jaten
EPS = 1e-3


def _input(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(4, 3, 2, 5, generator=generator, dtype=torch.float64) * 3 + 10).to(dtype)


def _parameters(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([0.5, -1.0, 2.0], dtype=dtype), torch.tensor([0.0, 1.0, -2.0], dtype=dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_forward_and_backward(dtype: torch.dtype, affine: bool) -> None:
    x = _input(dtype)
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    weight, bias = _parameters(wide) if affine else (None, None)
    leaves = [x.double().requires_grad_()]
    if affine:
        leaves += [p.double().requires_grad_() for p in (weight, bias)]
    expected = torch.nn.functional.batch_norm(leaves[0], None, None, *leaves[1:], training=True, eps=EPS)
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    of_leaves = torch.autograd.grad(expected, leaves, grad.double())

    mean, invstd = OPS.batch_norm_stats(x, EPS)
    out = OPS.batch_norm_elemt(x, weight, bias, mean, invstd, EPS)
    sums = OPS.batch_norm_backward_reduce(grad, x, mean, invstd, weight, True, affine, affine)
    count = torch.tensor([x.numel() // 3], dtype=torch.int32)
    of_x = OPS.batch_norm_backward_elemt(grad, x, mean, invstd, weight, *sums[:2], count)

    assert mean.dtype == invstd.dtype == wide
    assert out.dtype == of_x.dtype == dtype
    torch.testing.assert_close(mean, x.double().mean((0, 2, 3)).to(wide))
    torch.testing.assert_close(out, expected.to(dtype))
    torch.testing.assert_close(of_x, of_leaves[0].to(dtype))
    for got, wanted in zip(sums[2:], of_leaves[1:] or (None, None), strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            torch.testing.assert_close(got, wanted.to(wide), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("counted", [True, False])
def test_gathered_statistics_are_those_of_the_whole(counted: bool) -> None:
    x = _input(torch.float32)
    parts = x.split([1, 3] if counted else [2, 2])
    means, invstds = zip(*(OPS.batch_norm_stats(p, EPS) for p in parts), strict=True)
    rest = (torch.stack(means), torch.stack(invstds), None, None, 0.1, EPS)
    if counted:
        got = OPS.batch_norm_gather_stats_with_counts(x, *rest, torch.tensor([p.numel() // 3 for p in parts]).float())
    else:
        got = OPS.batch_norm_gather_stats(x, *rest, parts[0].numel() // 3)
    torch.testing.assert_close(got, OPS.batch_norm_stats(x, EPS))


def test_statistics_of_nothing_that_varies() -> None:
    """1 / sqrt(0) is 0, as in ATen."""
    mean, invstd = OPS.batch_norm_stats(torch.full((2, 1, 3), 7.0), 0.0)
    assert (mean.item(), invstd.item()) == (7.0, 0.0)
