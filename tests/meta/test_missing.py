"""Fakes whose shapes depend on values: sizes that only a fake tensor's shape environment can name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

OPS = torch.ops.jaten


def _fakes(mode: FakeTensorMode, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [mode.from_tensor(t) for t in tensors]


CALLS: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "unique_dim_consecutive": (lambda x: OPS.unique_dim_consecutive(x, 0), (torch.zeros(4, 3),)),
    "_ctc_loss": (
        lambda *args: OPS._ctc_loss.Tensor(*args)[1],
        (torch.zeros(4, 2, 3), torch.zeros(2, 2).long(), torch.zeros(2).long(), torch.zeros(2).long()),
    ),
    "_pack_padded_sequence": (
        lambda x, lengths: OPS._pack_padded_sequence(x, lengths, False),
        (torch.zeros(4, 2, 3), torch.tensor([4, 2])),
    ),
    "_padded_dense_to_jagged": (
        lambda x, ends: OPS._padded_dense_to_jagged_forward(x, [ends]),
        (torch.zeros(2, 3, 1), torch.tensor([0, 1, 3])),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_new_sizes(name: str) -> None:
    call, tensors = CALLS[name]
    with FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True)) as mode:
        result = call(*_fakes(mode, *tensors))
        first = result if isinstance(result, torch.Tensor) else result[0]
        assert free_unbacked_symbols(first.shape)
    with FakeTensorMode() as mode, pytest.raises(DynamicOutputShapeException):
        call(*_fakes(mode, *tensors))


@pytest.mark.parametrize("op", ["equal", "allclose"])
def test_bools_that_depend_on_values(op: str) -> None:
    with FakeTensorMode() as mode, pytest.raises(DataDependentOutputException):
        getattr(OPS, op)(*_fakes(mode, torch.ones(2), torch.ones(2)))


def test_bools_that_do_not() -> None:
    with FakeTensorMode() as mode:
        a, b = _fakes(mode, torch.ones(2), torch.ones(3))
        assert not OPS.is_same_size(a, b)
        assert OPS.is_same_size(a, a)
