"""Elementary functions of float32: the nearest number to the exact one, and ATen's at the edges."""

from __future__ import annotations

import math

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

jaten, aten = torch.ops.jaten, torch.ops.aten
OF_ONE = ("sin", "cos", "tan", "atan", "exp2")
OF_TWO = ("atan2", "fmod.Tensor", "remainder.Tensor")
# beyond 2**30 the sine of all is XLA's own
FAR = (2.0**30, -3e9, 3.4e38)
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 89.0, 2.0**29, math.inf, -math.inf, math.nan)
SUBNORMAL = (1e-40, -1e-40, 1e-44)


def _of(name: str, ops: object) -> object:
    packet, _, overload = name.partition(".")
    return getattr(getattr(ops, packet), overload or "default")


def _spread(n: int) -> torch.Tensor:
    """Numbers of both signs and of all sizes from 1e-30 to 1e8."""
    generator = torch.Generator().manual_seed(0)
    size = torch.rand(n, generator=generator, dtype=torch.float64) * 38 - 30
    return (10**size * (torch.randint(0, 2, (n,), generator=generator) * 2 - 1)).float()


def assert_identical(got: torch.Tensor, expected: torch.Tensor) -> None:
    """The same numbers, the same signs of zeros, NaN for NaN."""
    assert torch.equal(got.isnan(), expected.isnan())
    signed = [t.nan_to_num(0.0, math.inf, -math.inf).view(torch.int32) for t in (got, expected)]
    assert torch.equal(*signed), (got[signed[0] != signed[1]], expected[signed[0] != signed[1]])


def assert_nearest(got: torch.Tensor, nearest: torch.Tensor) -> None:
    """The nearest numbers but for a few in ten thousand, these one off; XLA flushes subnormal results."""
    normal = (nearest.abs() >= torch.finfo(torch.float32).tiny) | (nearest == 0)
    got, nearest = got[normal], nearest[normal]
    torch.testing.assert_close(got, nearest, rtol=1.2e-7, atol=0)
    assert (got != nearest).sum() <= 3e-4 * got.numel()


@pytest.mark.parametrize("name", OF_ONE)
def test_one_is_rounded_once(name: str) -> None:
    x = torch.cat([_spread(20000), torch.linspace(-100, 100, 20001)])
    assert_nearest(_of(name, jaten)(x), _of(name, aten)(x.double()).float())


@pytest.mark.parametrize("name", OF_TWO)
def test_two_are_rounded_once(name: str) -> None:
    x, ratios = _spread(20000), torch.linspace(-1000, 1000, 20000)
    x = torch.where(x.abs() > 1e-20, x, 1e-20)
    y = x.flip(0) if name == "atan2" else x * ratios
    assert_nearest(_of(name, jaten)(x, y), _of(name, aten)(x.double(), y.double()).float())


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("more", [(), FAR], ids=["near", "far"])
def test_edges_of_one(name: str, more: tuple[float, ...]) -> None:
    x = torch.tensor([*EDGES, *more])
    got, expected = _of(name, jaten)(x), _of(name, aten)(x)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-7, atol=0)
    assert torch.equal(got.signbit()[expected == 0], expected.signbit()[expected == 0])


@pytest.mark.parametrize("name", ["sin", "tan", "atan"])
def test_subnormal_numbers_stay(name: str) -> None:
    x = torch.tensor(SUBNORMAL)
    assert_identical(_of(name, jaten)(x), x)


@pytest.mark.parametrize("name", ["atan2", "fmod.Tensor"])
@pytest.mark.parametrize("more", [(), FAR, (1e-30,)], ids=["near", "far", "small"])
def test_edges_of_two(name: str, more: tuple[float, ...]) -> None:
    x = torch.tensor([*EDGES, *more])
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(x, x, indexing="ij"))
    exact = {"atan2": math.atan2, "fmod.Tensor": _fmod}[name]
    expected = [exact(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    got = _of(name, jaten)(a, b)
    flushed = torch.finfo(torch.float32).tiny
    torch.testing.assert_close(got, torch.tensor(expected), equal_nan=True, rtol=2e-7, atol=flushed)
    signs = torch.tensor([math.copysign(1, e) < 0 for e in expected])
    assert torch.equal(got.signbit()[got == 0], signs[got == 0])


def _fmod(a: float, b: float) -> float:
    return math.nan if math.isinf(a) or b == 0 else math.fmod(a, b)
