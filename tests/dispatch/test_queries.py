"""Numbers read from tensors of the device, as from those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jaten_ops  # noqa: F401  # the device jax

from ..harness.crossings import crossed

DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64, torch.int64,
    torch.uint8, torch.uint16, torch.bool,
)  # fmt: skip
ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "all of a tensor": lambda x: x[:1, :1].clone(),
    "an element": lambda x: x[1, 2],
    "of a transposed tensor": lambda x: x.t()[2:, :1],
    "of a slice with steps": lambda x: x[:, ::2][1, 1],
    "of a repeated element": lambda x: x[:1, 1:2].expand(2, 3)[1, 2],
    "of a conjugate": lambda x: x.conj()[1, 1],
    "of a part": lambda x: torch.view_as_real(x)[1, 1, 1] if x.is_complex() else x.view(-1)[5],
    "after a write by another view": lambda x: (x[0, 0], x.view(-1)[:3].copy_(x[1, :3]))[0],
}


@pytest.mark.parametrize(("name", "dtype"), crossed(ONE, DTYPES))
def test_item(name: str, dtype: torch.dtype) -> None:
    found: list[Any] = []
    for device in ("cpu", "jax"):
        x = torch.tensor([[0, 1, 0], [1, 1, 1]]).to(dtype).to(device)
        found.append(ONE[name](x * (1 + 2j) if dtype.is_complex else x).item())
    assert found[1] == found[0]
    assert type(found[1]) is type(found[0])


def test_item_of_freed_memory_is_refused() -> None:
    x = torch.ones(3, device="jax")
    view = x[1]
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="freed"):
        view.item()
