"""Functions in short dtypes: each bit is ATen's, also beside numbers and 0-d tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ..harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mul": torch.mul,
    "div": torch.div,
    "div, trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div, floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "lerp": lambda a, b: torch.lerp(a, a * 2, b),
    "addcmul": lambda a, b: torch.addcmul(a, b, a, value=0.3),
}
NUMBER = 7.3  # which short dtypes round
OPERANDS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[Any, Any]]] = {
    "tensors": lambda x, y: (x, y),
    "a number first": lambda x, y: (NUMBER, y),
    "a number second": lambda x, y: (x, NUMBER),
    "a 0-d tensor first": lambda x, y: (torch.tensor(NUMBER, device=y.device), y),
    "a 0-d tensor second": lambda x, y: (x, torch.tensor(NUMBER, device=x.device)),
}
REFUSED = {
    ("rsub", "a number first"),
    ("fmod", "a number first"),
    ("lerp", "a number first"),
    ("lerp", "a 0-d tensor first"),
    ("addcmul", "a number first"),
    ("addcmul", "a number second"),
}
"""Operands for which torch has no overload, or of dtypes that may not differ."""
DTYPES = [torch.bfloat16, torch.float16]
_SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 3.0, 0.5, 6.5e4, 4e-6]


def _given(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = torch.cartesian_prod(torch.tensor(_SPECIAL), torch.tensor(_SPECIAL))
    random = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)) * 5
    x, y = torch.cat([random, pairs]).to(dtype).T.contiguous()
    return x, y


@pytest.mark.parametrize(("name", "operands", "dtype"), crossed(FUNCTIONS, OPERANDS, DTYPES))
def test_bits_are_those_of_the_cpu(name: str, operands: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS[name](*OPERANDS[operands](x, y))

    x, y = _given(dtype)
    if (name, operands) in REFUSED:
        for device in ("cpu", "jax"):
            with pytest.raises((TypeError, RuntimeError)):
                program(x.to(device), y.to(device))
        return
    expected = program(x, y)
    found = program(x.to("jax"), y.to("jax")).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    compiled = torch.compile(program, backend="jaten")(x, y)
    torch.testing.assert_close(compiled, expected, rtol=0, atol=0, equal_nan=True)


OF_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "celu": lambda x: F.celu(x, NUMBER),
    "elu": lambda x: F.elu(x, NUMBER),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.13),
    "rrelu": lambda x: F.rrelu(x.abs().neg(), 0.13, 0.77),
    "logit": lambda x: torch.logit(x.abs().sigmoid().neg() + 1),
    "logit, eps": lambda x: torch.logit(x.sigmoid(), 0.13),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in OF_ONE for d in DTYPES if (n, d) != ("rrelu", torch.float16)],  # which ATen has no kernel for
)
def test_bits_of_functions_of_one_operand(name: str, dtype: torch.dtype) -> None:
    x, _ = _given(dtype)
    found = OF_ONE[name](x.to("jax")).cpu()
    torch.testing.assert_close(found, OF_ONE[name](x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponents_are_rounded(dtype: torch.dtype) -> None:
    """Powers themselves are computed by other libraries, in which a last bit may differ."""
    x = torch.tensor([0.5, 1.25, 2.546875], dtype=dtype)
    exact = x.double() ** torch.tensor(NUMBER, dtype=dtype).double()
    for found in (x.to("jax") ** NUMBER, x.to("jax") ** torch.tensor(NUMBER, device="jax")):
        torch.testing.assert_close(found.cpu().double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0)
