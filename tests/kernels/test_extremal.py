"""NaN, infinities, signed zeros, the largest and smallest numbers: elementwise operators and reductions give ATen's.

NaN positions, infinities and the signs of zeros are compared exactly, integers too; finite numbers to the tolerance of
their dtype.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo
from torch.utils._pytree import tree_flatten

from jaten_ops import registry

from ..harness import exceptions
from ..harness.beside import Beside
from ..harness.comparison import UNINITIALIZED, assert_same, in_float64
from ..harness.replay import (
    OP_INFOS,
    callable_overload,
    describe,
    describe_call,
    jaten_overload,
    op_named,
    samples,
    supported,
)
from ..test_ops import NAMES

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
    torch.complex64,
)


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """The values of a dtype at its edges, and a few between."""
    if dtype.is_complex:
        parts = (0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan)
        return torch.tensor([complex(a, b) for a, b in itertools.product(parts, parts)], dtype=dtype)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        values = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7, max(info.min, -1), max(info.min, -2)}
        return torch.tensor(sorted(values), dtype=dtype)
    info = torch.finfo(dtype)
    # XLA flushes subnormal numbers to zero: none of these, their halves or their reciprocals are subnormal
    positive = [0.0, 4 * info.tiny, 0.5, 1.0, 1.5, 2.0, 3.0, 89.0, info.max / 8, math.inf]
    return torch.tensor([*positive, *(-v for v in positive), math.nan], dtype=dtype)


# ATen refuses a division by zero, and the process ends where it divides the lowest integer by -1
DIVISIONS = frozenset(
    {"div.trunc_rounding", "div.floor_rounding", "floor_divide", "fmod", "remainder", "__rmod__", "gcd", "lcm"}
)
# The sign of a zero that equals the other operand: ATen's vectors and the rest of its loops differ.
TIES = (
    "max",
    "min",
    "fmax",
    "fmin",
    "clamp",
    "amax",
    "amin",
    "aminmax",
    "relu",
    "hardtanh",
    "softshrink",
    "hardshrink",
)


def calls(name: str, dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The OpInfo's arguments: extremes alone, in pairs, or along a dimension."""
    op, x = OP_INFOS[name], extremes(dtype)
    if isinstance(op, BinaryUfuncInfo):
        if name in DIVISIONS and not dtype.is_floating_point:
            x = x[(x != 0) & (x != -1) & (x != torch.iinfo(dtype).min)]
        left, right = torch.meshgrid(x, x, indexing="ij")
        yield left.contiguous(), (right.contiguous(),), _keywords(name, dtype)
    elif isinstance(op, UnaryUfuncInfo):
        keywords, _ = op.sample_kwargs("cpu", dtype, x)
        yield x, (), keywords
    else:
        pairs = torch.cartesian_prod(x, x)
        yield x, (), {}
        yield pairs, (), {"dim": 1}
        yield pairs.t().contiguous(), (), {"dim": 0}


def _keywords(name: str, dtype: torch.dtype) -> dict[str, Any]:
    return next((s.kwargs for s in samples(name, dtype, False, 1)), {})


def assert_extremes(got: Any, expected: Any, signs: bool = True) -> None:
    """Raises AssertionError unless NaNs, infinities and, if asked for, the signs of zeros are the same."""
    if expected.is_complex():
        got, expected = torch.view_as_real(got), torch.view_as_real(expected.resolve_conj())
    if expected.is_floating_point():
        wrong = (got.isnan() != expected.isnan()) | ((got.isinf() | expected.isinf()) & (got != expected))
        wrong &= ~(got.isnan() & expected.isnan())
        if signs:
            wrong |= (got == 0) & (expected == 0) & (got.signbit() != expected.signbit())
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise AssertionError(f"{int(wrong.sum())} differ, at {at}: got {got[at]}, expected {expected[at]}")


class Extremes(Beside):
    """Makes each ATen call with jaten too, and notes where the results differ at the edges."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        overload = jaten_overload(func)
        overload = overload and callable_overload(overload, args)
        if overload is None or registry.SPECS[overload].random or overload in UNINITIALIZED:
            return results
        self.compared += 1
        try:
            got = op_named(overload)(*args, **kwargs)
            assert_same(overload, got, results, args, lambda: in_float64(func, args, kwargs))
            for g, e in zip(tree_flatten(got)[0], tree_flatten(results)[0], strict=True):
                if isinstance(e, torch.Tensor):
                    assert_extremes(g, e, signs=not overload.startswith(TIES))
        except Exception as error:
            self.failures.append(describe(error, describe_call(overload, args, kwargs)))
        return results


def compare(name: str, dtype: torch.dtype) -> Extremes:
    mode = Extremes()
    for input_, args, kwargs in calls(name, dtype):
        with mode:
            try:
                OP_INFOS[name](input_, *args, **kwargs)
            except Exception:  # ATen refuses some: an integer divided by zero, a reduction without dim
                continue
    return mode


# NaN where both arguments are near the largest number, and twenty seconds until then
NOT_YET = ("igamma", "igammac")
KINDS = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)
TABLE = [
    (f"{n}-{str(d).removeprefix('torch.')}", n, d)
    for n in NAMES
    if isinstance(OP_INFOS[n], KINDS) and n not in NOT_YET
    for d in DTYPES
    if supported(n, d)
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.sampled(88)
@pytest.mark.parametrize(("label", "name", "dtype"), TABLE)
def test_extremal(label: str, name: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "extremal", name, dtype)
    mode = compare(name, dtype)
    assert not mode.failures, "\n".join(mode.failures[:5])
