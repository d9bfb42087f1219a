"""Checkpoint policies by name: the bytes that are saved for the backward pass, and gradients as without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import jaten_ops
from jaten_ops.errors import UnsupportedInputError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ROW = 256 * 4  # bytes of a number for each row
# policy: numbers a row that are saved: the input, the layer's product, the product of batches, a function's result
SAVED = {
    "nothing_saveable": 16,
    "dots_with_no_batch_dims_saveable": 16 + 64,
    "dots_saveable": 16 + 64 + 64,
    "everything_saveable": 16 + 64 + 64 + 64,
}


class Block(nn.Module):
    """A layer, a product of batches, and functions element by element, each of which keeps values."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 64, bias=False)
        self.mix = nn.Parameter(torch.randn(2, 64, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.up(x)).view(2, -1, 64)
        return torch.sigmoid(torch.bmm(hidden, self.mix)).exp()


def _saved(block: nn.Module, x: Tensor, **options: Any) -> tuple[int, Tensor]:
    """The bytes that a compiled call keeps, and the gradient of the input."""
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and tensor.numel() >= len(x):
            kept.append(tensor.numel() * tensor.element_size())
        return tensor

    call = torch.compile(lambda x: checkpoint(block, x, use_reentrant=False, **options), backend="jaten")
    with saved_tensors_hooks(note, lambda tensor: tensor):
        y = call(x)
    return sum(kept), torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_what_is_saved(device: str) -> None:
    torch.manual_seed(0)
    block = Block().to(device)
    x = torch.randn(256, 16).to(device).requires_grad_()
    (expected,) = torch.autograd.grad(block(x).sum(), x)
    parameters = sum(p.numel() * p.element_size() for p in block.parameters())  # of the device they are kept as arrays
    for name, numbers in SAVED.items():
        torch._dynamo.reset()
        size, gradient = _saved(block, x, context_fn=jaten_ops.checkpoint_policy(name))
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)
        assert size == numbers * ROW + (parameters if device == "jax" else 0), name


def test_eager_mode() -> None:
    block, x = Block(), torch.randn(256, 16, requires_grad=True)
    (expected,) = torch.autograd.grad(block(x).sum(), x)
    for name in SAVED:
        y = checkpoint(block, x, use_reentrant=False, context_fn=jaten_ops.checkpoint_policy(name))
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(UnsupportedInputError, match="dots_saveable"):
        jaten_ops.checkpoint_policy("dots")
