"""Numbers that a dtype cannot hold: ATen converts them in some calls, and refuses them in others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jaten_ops  # noqa: F401  # the device jax

from ..harness.crossings import crossed
from ..harness.paths import compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

NUMBERS = {"uint8": (300, -1, -300, 2.5), "int32": (2**40, -1, 1e10), "float16": (300, 2**40, 1e300)}
INTEGERS = ("uint8", "int32")


def _set(x: Tensor, index: Any, value: Any) -> Tensor:
    x[index] = value
    return x


def _first(x: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=x.device)


def _mask(x: Tensor) -> Tensor:
    return torch.tensor([True, False, True], device=x.device)


def _tensor(x: Tensor, number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64 if type(number) is float else None, device=x.device)


ANY: dict[str, Callable[[Tensor, Any], Any]] = {
    "copy_": lambda x, n: x.copy_(n),
    "copy_ of a tensor": lambda x, n: x.copy_(_tensor(x, n)),
    "fill_": lambda x, n: x.fill_(n),
    "fill_ of one": lambda x, n: x[:1].clone().fill_(n),
    "full_like": torch.full_like,
    "full of one": lambda x, n: torch.full((1,), n, dtype=x.dtype, device=x.device),
    "scalar_tensor": lambda x, n: torch.scalar_tensor(n, dtype=x.dtype, device=x.device),
    "an element": lambda x, n: _set(x, 0, n),
    "a slice": lambda x, n: _set(x, slice(0, 2), n),
    "a mask": lambda x, n: _set(x, _mask(x), n),
    "a mask by a tensor": lambda x, n: _set(x, _mask(x), _tensor(x, n)),
    "an element by a tensor": lambda x, n: _set(x, 0, _tensor(x, n)),
    "masked_fill": lambda x, n: x.masked_fill(_mask(x), n),
    "index_fill": lambda x, n: x.index_fill(0, _first(x), n),
    "where": lambda x, n: torch.where(_mask(x), x, n),
    "constant_pad_nd": lambda x, n: F.pad(x, (1, 1), value=n),
}
# Too large floats are taken: each call would wait for the check.
OF_INTEGERS: dict[str, Callable[[Tensor, Any], Any]] = {
    "clamp": lambda x, n: x.clamp(max=n),
    "clamp between": lambda x, n: x.clamp(n, 5),
    "clamp_max": torch.clamp_max,
    "clamp_min_": lambda x, n: x.clone().clamp_min_(n),
    "clamp by a tensor": lambda x, n: x.clamp(max=_tensor(x, n)),
    "hardtanh": lambda x, n: F.hardtanh(x, 0, n),
    "threshold": lambda x, n: F.threshold(x, 1, n),
    "add": lambda x, n: torch.add(x, x, alpha=n),
    "rsub": lambda x, n: torch.rsub(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "a list": lambda x, n: torch._foreach_clamp_max([x], n)[0],
}
ROWS = [
    (name, dtype, number)
    for name in ANY | OF_INTEGERS
    for dtype in (NUMBERS if name in ANY else INTEGERS)
    for number in NUMBERS[dtype]
]


def _outcome(call: Callable[[Tensor, Any], Any], dtype: str, number: Any, device: str) -> Any:
    try:
        return call(torch.tensor([1, 2, 3], dtype=getattr(torch, dtype), device=device), number).cpu()
    except Exception as error:
        return type(error)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "dtype", "number"), ROWS)
def test_outcomes_on_the_device(name: str, dtype: str, number: Any) -> None:
    expected, found = (_outcome((ANY | OF_INTEGERS)[name], dtype, number, d) for d in ("cpu", "jax"))
    if isinstance(expected, type) or isinstance(found, type):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "dtype"), crossed(OF_INTEGERS, INTEGERS))
def test_refusals_compiled(name: str, dtype: str) -> None:
    too_large = NUMBERS[dtype][0]
    expected = _outcome(OF_INTEGERS[name], dtype, too_large, "cpu")
    found = _outcome(compile_whole(OF_INTEGERS[name]), dtype, too_large, "cpu")
    assert isinstance(found, type) == isinstance(expected, type)
