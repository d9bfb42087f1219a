"""Calls of compiled steps within other transforms of torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from jaten_ops import compile_step


def _tangent(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(fn(forward_ad.make_dual(x, torch.ones_like(x)))).tangent.clone()

    return run


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "grad": lambda fn: torch.func.grad(lambda x: fn(x).sum()),
    "vjp": lambda fn: lambda x: torch.func.vjp(fn, x)[1](x)[0],
    "jvp": lambda fn: lambda x: torch.func.jvp(fn, (x,), (x,))[1],
    "jacrev": torch.func.jacrev,
    "hessian": lambda fn: torch.func.hessian(lambda x: fn(x).sum()),
    "vmap": torch.vmap,
    "tangents": _tangent,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_step_within_a_transform(name: str) -> None:
    factor = torch.full((), 2.0, device="jax")
    step = compile_step(lambda x: x.sin() * factor)
    x = torch.arange(3.0, device="jax")
    for _ in range(3):
        wanted = TRANSFORMS[name](lambda x: x.sin() * 2)(x.cpu())
        torch.testing.assert_close(TRANSFORMS[name](step)(x).cpu(), wanted)
        torch.testing.assert_close(step(x).cpu(), x.cpu().sin() * 2)
