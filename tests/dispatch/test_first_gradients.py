"""`ones_like` of one number on the device: its values by what the number and the call are, and that none is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import jaten_ops
from tests.harness.crossings import crossed

OPERANDS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "a number": lambda dtype: torch.tensor(3, dtype=dtype),
    "an element": lambda dtype: torch.tensor([3, 4], dtype=dtype)[1],
    "a vector": lambda dtype: torch.tensor([3, 4], dtype=dtype),
    "of a leaf": lambda dtype: torch.tensor(3, dtype=dtype, requires_grad=dtype.is_floating_point).clone(),
    "as another dtype": lambda dtype: torch.tensor(3, dtype=torch.int32).view(torch.int32).to(dtype),
}
OPTIONS: list[dict[str, Any]] = [
    {}, {"memory_format": torch.preserve_format}, {"dtype": torch.float64}, {"device": "cpu"}, {"requires_grad": True},
]  # fmt: skip
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize(("name", "dtype", "options"), crossed(list(OPERANDS), DTYPES, OPTIONS))
def test_ones_like(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    if options.get("requires_grad") and not (dtype.is_floating_point or dtype.is_complex):
        options = {}
    operand = OPERANDS[name](dtype)
    for _ in range(2):
        got, expected = torch.ones_like(operand.to("jax"), **options), torch.ones_like(operand, **options)
        assert got.device.type == options.get("device", "jax") and got.requires_grad == expected.requires_grad
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=0, atol=0)


def test_what_is_written_to_one_no_other_has() -> None:
    x = torch.tensor(2.0, device="jax", requires_grad=True)
    for _ in range(3):
        loss = x * 3
        loss.register_hook(lambda g: g.mul_(5))
        (got,) = torch.autograd.grad(loss, x)
        assert got.item() == 15 and torch.ones_like(loss).item() == 1


def test_an_array_may_be_given_away() -> None:
    x = torch.tensor(2.0, device="jax")
    array = jaten_ops.to_jax(torch.ones_like(x))
    array.delete()
    assert torch.ones_like(x).item() == 1


def test_traced_numbers() -> None:
    fn = jaten_ops.as_jax(lambda x: torch.ones_like(x) + x)
    assert jax.jit(fn)(jnp.float32(2)) == 3 and jax.grad(fn)(jnp.float32(2)) == 1
    mapped = torch.func.vmap(torch.ones_like)(torch.zeros(3, device="jax"))
    torch.testing.assert_close(mapped.cpu(), torch.ones(3))
    found = torch.func.grad(lambda x: (x * torch.ones_like(x)).sin())(torch.tensor(1.0, device="jax"))
    torch.testing.assert_close(found.cpu(), torch.tensor(1.0).cos())
