"""Calls with masks, integers, half precision and numbers: results have the dtypes of ATen's kernels on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jaten_ops  # noqa: F401  # the device jax

from ..harness.crossings import crossed
from ..harness.paths import compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Call = Callable[[dict[str, torch.Tensor]], torch.Tensor]

CALLS: dict[str, Call] = {
    "ldexp by half": lambda v: torch.ldexp(v["ints"], v["half"]),
    "ldexp of a mask by half": lambda v: torch.ldexp(v["mask"], v["half"]),
    "ldexp by integers": lambda v: torch.ldexp(v["bytes"], v["ints"]),
    "a mask ** True": lambda v: v["mask"] ** True,
    "a mask ** False": lambda v: v["mask"] ** False,
    "a mask ** 1": lambda v: v["mask"] ** 1,
    "bytes ** True": lambda v: v["bytes"] ** True,
    "the float power True of a mask": lambda v: torch.float_power(v["mask"], True),
    "bytes >> True": lambda v: v["bytes"] >> True,
    "bytes << integers": lambda v: v["bytes"] << v["ints"],
}
# Dynamo refuses these with any backend, as ATen's meta functions do.
EAGER: dict[str, Call] = {
    "a mask ** True, in place": lambda v: v["mask"].clone().pow_(True),
    "a mask ** True, to a result": lambda v: torch.pow(v["mask"], True, out=v["mask"].clone()),
    "a mask << bytes": lambda v: v["mask"] << v["bytes"],
    "a mask << a number": lambda v: v["mask"] << 2,
    "bytes << a mask": lambda v: v["bytes"] << v["mask"],
    "integers >> a mask": lambda v: v["ints"] >> v["mask"],
    "bytes << a mask, in place": lambda v: v["bytes"].clone().__ilshift__(v["mask"]),
}
REFUSED: dict[str, Call] = {
    "a mask << True": lambda v: v["mask"] << True,
    "a mask >> a mask": lambda v: v["mask"] >> v["mask"],
    "integers << half": lambda v: v["ints"] << v["half"],
    "half >> 1": lambda v: v["half"] >> 1,
    "a mask << a number, in place": lambda v: v["mask"].clone().__ilshift__(2),
    "a mask ** 2, in place": lambda v: v["mask"].clone().pow_(2),
}
PLACES = ("compiled", "jax")


def _run(call: Call, place: str) -> torch.Tensor:
    values = {
        "mask": torch.tensor([True, False, True]),
        "ints": torch.tensor([1, 2, 3], dtype=torch.int32),
        "bytes": torch.tensor([1, 2, 200], dtype=torch.uint8),
        "half": torch.tensor(2.0, dtype=torch.float16),
    }
    run = compile_whole(call) if place == "compiled" else call
    return run({n: v.to("jax" if place == "jax" else "cpu") for n, v in values.items()})


@pytest.mark.parametrize(("name", "place"), [*crossed(CALLS, PLACES), *((name, "jax") for name in EAGER)])
def test_dtypes(name: str, place: str) -> None:
    found, expected = (_run((CALLS | EAGER)[name], at) for at in (place, "cpu"))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    with pytest.raises(Exception) as expected:  # whatever ATen raises
        _run(REFUSED[name], "cpu")
    with pytest.raises(expected.type):
        _run(REFUSED[name], "jax")
