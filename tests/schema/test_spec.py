"""Schemas as `OpSpec` reads them."""

from __future__ import annotations

import pytest
import torch

from jaten_ops.schema import OpSpec

NAMES = {
    torch.uint8: "uint8", torch.int8: "int8", torch.int16: "short", torch.int32: "int", torch.int64: "long",
    torch.float16: "half", torch.float32: "float", torch.float64: "double", torch.complex32: "chalf",
    torch.complex64: "cfloat", torch.complex128: "cdouble", torch.bool: "bool", torch.bfloat16: "bfloat16",
    torch.float8_e5m2: "float8_e5m2", torch.float8_e4m3fn: "float8_e4m3fn", torch.uint16: "uint16",
    torch.uint32: "uint32", torch.uint64: "uint64",
}  # fmt: skip


@pytest.mark.parametrize("optional", ["", "?"], ids=["required", "optional"])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_dtypes_as_defaults(dtype: torch.dtype, optional: str) -> None:
    spec = OpSpec(f"f(Tensor x, ScalarType{optional} dtype={NAMES[dtype]}) -> Tensor")
    assert spec.arguments[1].default is dtype
