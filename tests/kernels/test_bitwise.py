"""Bitwise operators with a number as one operand, compared with ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from tests.harness.recorded import op_of_aten

DTYPES = (torch.int32, torch.uint8, torch.int64)
VALUES = [0, 1, 2, 5, 100]
SHIFTS = [0, 1, 3, 7, 31]

WITH_SCALAR = ("bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar")
SCALAR_WITH = ("bitwise_and.Scalar_Tensor", "bitwise_or.Scalar_Tensor", "bitwise_xor.Scalar_Tensor")
SHIFTED_BY = ("__lshift__.Scalar", "__rshift__.Scalar", "bitwise_left_shift.Tensor_Scalar",
              "bitwise_right_shift.Tensor_Scalar")  # fmt: skip
SHIFTED = ("bitwise_left_shift.Scalar_Tensor", "bitwise_right_shift.Scalar_Tensor")
OF_TENSORS = ("__lshift__.Tensor", "__rshift__.Tensor")


def _arguments(dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    values, shifts = torch.tensor(VALUES, dtype=dtype), torch.tensor(SHIFTS, dtype=dtype)
    return {
        **dict.fromkeys(WITH_SCALAR, (values, 6)),
        **dict.fromkeys(SCALAR_WITH, (6, values)),
        **dict.fromkeys(SHIFTED_BY, (values, 2)),
        **dict.fromkeys(SHIFTED, (5, shifts)),
        **dict.fromkeys(OF_TENSORS, (values, shifts)),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", _arguments(torch.int64))
def test_values(name: str, dtype: torch.dtype) -> None:
    packet, _, suffix = name.partition(".")
    args = _arguments(dtype)[name]
    got = getattr(getattr(torch.ops.jaten, packet), suffix)(*args)
    torch.testing.assert_close(got, op_of_aten(name)(*args), rtol=0, atol=0)
