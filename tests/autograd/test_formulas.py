"""Gradients that PyTorch's samples do not reach, against ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ..harness.beside import assert_same_gradients

OPS = torch.ops.jaten


def _tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("features", [(), (2,)])
def test_pack_padded_sequence(batch_first: bool, features: tuple[int, ...]) -> None:
    lengths = torch.tensor([4, 3, 1])
    shape = (3, 5) if batch_first else (5, 3)
    assert_same_gradients(lambda ops, x: ops._pack_padded_sequence(x, lengths, batch_first), _tensor(*shape, *features))


def test_fused_dropout() -> None:
    x = _tensor(200).requires_grad_()
    result, mask = OPS._fused_dropout(x, 0.3)
    (grad,) = torch.autograd.grad(result, x, torch.ones_like(x))
    assert mask.dtype == torch.uint8
    torch.testing.assert_close(grad, mask.double() / 0.3)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, float("inf")])
def test_dist(p: float) -> None:
    assert_same_gradients(lambda ops, x, y: ops.dist(x, y, p), _tensor(3, 1), _tensor(4, seed=1))


def test_slice_inverse() -> None:
    """The rest comes from the other tensor, with its gradient."""
    src, part = _tensor(5).requires_grad_(), _tensor(2, seed=1).requires_grad_()
    whole = OPS.slice_inverse(part, src, 0, 1, 4, 2)
    torch.testing.assert_close(whole, src.slice_scatter(part, 0, 1, 4, 2))
    of_part, of_src = torch.autograd.grad(whole, (part, src), torch.arange(5.0, dtype=torch.float64))
    assert of_part.tolist() == [1, 3]
    assert of_src.tolist() == [0, 0, 2, 0, 4]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_overrideable(transposed: bool) -> None:
    """`convolution_overrideable`, which ATen leaves to other backends, is `convolution`, up to second order."""
    x, bias = _tensor(2, 4, 5, 5), _tensor(6, seed=2)
    weight = _tensor(4, 3, 3, 3, seed=1) if transposed else _tensor(6, 2, 3, 3, seed=1)
    settings = ([2, 1], [1, 0], [1, 1], transposed, [1, 0] if transposed else [0, 0], 2)

    def second_order(op: Any) -> list[torch.Tensor]:
        leaves = [v.clone().requires_grad_() for v in (x, weight, bias)]
        out = op(*leaves, *settings)
        grad = _tensor(*out.shape, seed=3)
        first = torch.autograd.grad(out, leaves, grad, create_graph=True)
        second = torch.autograd.grad(first[0].pow(2).sum() + first[1].pow(2).sum(), leaves[:2])
        return [out.detach(), *(v.detach() for v in first), *second]

    torch.testing.assert_close(second_order(OPS.convolution_overrideable), second_order(torch.ops.aten.convolution))


@pytest.mark.parametrize(
    ("a", "b"), [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4))]
)
def test_matmul_backward(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """`matmul_backward`, which ATen has for nested tensors only, is the gradient of `matmul`."""
    left, right = _tensor(*a).requires_grad_(), _tensor(*b, seed=1).requires_grad_()
    product = torch.matmul(left, right)
    grad = _tensor(*product.shape, seed=2)
    expected = torch.autograd.grad(product, (left, right), grad)
    got = OPS.matmul_backward(grad, left.detach(), right.detach(), [True, True])
    torch.testing.assert_close(tuple(got), expected)
    assert OPS.matmul_backward(grad, left.detach(), right.detach(), [False, True])[0] is None


def test_third_derivatives_of_a_batch_normalization_are_those_of_its_formula() -> None:
    """ATen's own are wrong: its derivative of the second one leaves terms out."""
    g = torch.Generator().manual_seed(0)
    x, w, b, c = (torch.randn(*shape, dtype=torch.float64, generator=g) for shape in ((5, 4), (4,), (4,), (5, 4)))

    def formula(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() * w + b

    def direct(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.jaten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0]

    found = []
    for normalized in (formula, direct):
        y, result = x.clone().requires_grad_(), torch.zeros(())
        result = (normalized(y) ** 3).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(result, y, create_graph=True)
            result = (gradient * c).sum()
        found.append(gradient)
    torch.testing.assert_close(*found)
