"""Calls with another bound or exponent each time: another number is no other program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.xla import kernel_cache
from jaten_ops.xla.compiles import noted

pytestmark = pytest.mark.usefixtures("fresh_dynamo")  # the tests compile the same code

# the call with the number i, and the bounds of its results; None for results that are those of the CPU
CALLS: dict[str, tuple[Callable[[int, str], torch.Tensor], Callable[[int], tuple[int, int]] | None]] = {
    "randint": (lambda i, d: torch.randint(i + 1, (2000,), device=d), lambda i: (0, i)),
    "randint, low": (lambda i, d: torch.randint(-i, i + 1, (2000,), device=d), lambda i: (-i, i)),
    "randint, bytes": (
        lambda i, d: torch.randint(i, i + 3, (2000,), dtype=torch.uint8, device=d), lambda i: (i, i + 2),
    ),
    "randint, many": (
        lambda i, d: torch.randint(-(2**40), 2**40 + i, (2000,), device=d), lambda i: (-(2**40), 2**40 + i),
    ),
    "randint_like": (lambda i, d: torch.randint_like(torch.ones(2000, device=d), i + 2), lambda i: (0, i + 1)),
    "randint_like, low": (
        lambda i, d: torch.randint_like(torch.ones(2000, device=d), i, i + 2), lambda i: (i, i + 1),
    ),
    "random_": (lambda i, d: torch.ones(2000, device=d).random_(i + 1), lambda i: (0, i)),
    "random_, from": (lambda i, d: torch.ones(2000, device=d).random_(i, i + 4), lambda i: (i, i + 3)),
    "pow": (lambda i, d: torch.linspace(-1, 3, 50, device=d) ** (0.3 + i), None),
    "pow, half": (lambda i, d: torch.linspace(0, 2, 50, device=d, dtype=torch.float16) ** (0.5 - i), None),
    "pow, double": (lambda i, d: torch.linspace(0, 2, 50, device=d, dtype=torch.float64) ** (-1.25 * i), None),
    "float_power": (lambda i, d: torch.float_power(torch.linspace(0, 3, 50, device=d), 1.1 * i), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_another_number_compiles_nothing(name: str) -> None:
    call, bounds = CALLS[name]
    for i in range(1, 5):  # special exponents are among them
        call(i, "jax")
    made = kernel_cache._made
    for i in range(2, 12):
        got = call(i, "jax").cpu()
        if bounds is None:
            close = {"rtol": 1e-5, "atol": 1e-6}
            if got.dtype == torch.float16:  # ATen rounds the exponent as well
                close["rtol"] = 1e-2
            torch.testing.assert_close(got, call(i, "cpu"), **close, equal_nan=True)
            continue
        low, high = bounds(i)
        assert low <= got.min() and got.max() <= high
        if high - low < 100:
            assert len(got.unique()) == high - low + 1
    assert kernel_cache._made == made


def test_numbers_are_drawn_evenly() -> None:
    drawn = torch.randint(-5, 7, (60000,), device="jax").cpu()
    counts = torch.bincount(drawn + 5)
    assert len(counts) == 12 and (counts - 5000).abs().max() < 400  # six standard deviations


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.randint(5, 5, (3,), device=d),
        lambda d: torch.randint(0, 300, (3,), dtype=torch.uint8, device=d),
        lambda d: torch.randint(0, 3, (-1,), device=d),
        lambda d: torch.ones(3, device=d, dtype=torch.int8).random_(-200, 3),
    ],
    ids=["empty", "too large", "negative size", "too small"],
)
def test_wrong_bounds_are_refused(call: Callable[[str], Any]) -> None:
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError):
            call(device)


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", ["randint", "randint, low", "randint, bytes", "randint, many"])
def test_bounds_of_compiled_functions(name: str, device: str) -> None:
    call, bounds = CALLS[name]
    assert bounds is not None
    fn = torch.compile(lambda i: call(i, device), backend="jaten", dynamic=True)
    fn(1), fn(2), fn(3)
    with noted() as compiled:
        for i in range(4, 9):
            got = fn(i).cpu()
            assert bounds(i)[0] <= got.min() and got.max() <= bounds(i)[1]
    assert not compiled
