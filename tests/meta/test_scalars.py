"""`_foreach_addcdiv` and `_foreach_addcmul` with the numbers in a tensor, which is on the CPU whatever the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # the device jax

from ..harness.paths import compile_whole

DTYPES = {"float64": torch.float64, "float32": torch.float32, "int64": torch.int64}
WAYS = ("direct", "device", "compiled", "compiled on the device")


def _written(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(a: Any, b: Any, c: Any, scalars: torch.Tensor) -> Any:
        own = [x.clone() for x in a]
        fn(own, b, c, scalars)
        return own

    return call


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "addcdiv": torch._foreach_addcdiv,
    "addcmul": torch._foreach_addcmul,
    "addcdiv_": _written(torch._foreach_addcdiv_),
    "addcmul_": _written(torch._foreach_addcmul_),
}


def _lists(of: torch.dtype) -> list[list[torch.Tensor]]:
    torch.manual_seed(0)
    return [[torch.rand(3).to(of) + 1, torch.rand(2, 2).to(of) + 1] for _ in range(3)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, dtype: str, way: str) -> None:
    scalars = torch.tensor([2, 3]).to(DTYPES[dtype])
    expected = FUNCTIONS[name](*_lists(torch.float32), scalars)
    fn = FUNCTIONS[name]
    if way == "direct":
        op = getattr(torch.ops.jaten, f"_foreach_{name}").Tensor
        fn = _written(op) if name.endswith("_") else op
    torch._dynamo.reset()
    given = [[x.to("jax") if "device" in way else x for x in xs] for xs in _lists(torch.float32)]
    found = (compile_whole(fn) if "compiled" in way else fn)(*given, scalars)
    torch.testing.assert_close([x.cpu() for x in found], list(expected))


WRONG: dict[str, torch.Tensor] = {"too few": torch.ones(1), "0-d": torch.tensor(1.0), "2-d": torch.ones(1, 2)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_scalars_are_refused(name: str, way: str) -> None:
    given = [[x.to("jax") if "device" in way else x for x in xs] for xs in _lists(torch.float32)]
    with pytest.raises(RuntimeError):
        torch._foreach_addcdiv(*_lists(torch.float32), WRONG[name])
    torch._dynamo.reset()
    fn = torch.ops.jaten._foreach_addcdiv.Tensor if way == "direct" else torch._foreach_addcdiv
    with pytest.raises(RuntimeError, match="calar"):
        (compile_whole(fn) if "compiled" in way else fn)(*given, WRONG[name])
