"""Errors of calls whose results JAX cannot hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from jaten_ops.errors import UnsupportedInputError

from ..harness.paths import compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

HALF_COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "complex": lambda x: torch.complex(x, x),
    "a part of it": lambda x: torch.complex(x, x).real,
    "view_as_complex": torch.view_as_complex,
    "to": lambda x: x.to(torch.complex32),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", HALF_COMPLEX)
def test_complex_numbers_of_half_precision(name: str) -> None:
    x = torch.ones(2, dtype=torch.float16)
    with pytest.raises(UnsupportedInputError, match=r"complex32.*convert"):
        compile_whole(HALF_COMPLEX[name])(x)
    with pytest.raises(UnsupportedInputError, match="complex32"):
        HALF_COMPLEX[name](x.to("jax"))
