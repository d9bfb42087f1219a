"""Forward mode of views: the tangents lie in memory as their primals do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.func import jacfwd, jvp

import jaten_ops  # noqa: F401  # the device jax
from tests.harness.crossings import crossed

Function = Callable[[torch.Tensor], torch.Tensor]

PRIMALS: dict[str, Function] = {
    "transposed": lambda a: a.mT,
    "columns": lambda a: a[:, ::2],
    "rows": lambda a: a[1:],
    "permuted": lambda a: a.reshape(2, 3, 2).permute(2, 0, 1),
}
FUNCTIONS: dict[str, Function] = {
    "transpose": lambda w: w.mT.sin(),
    "row": lambda w: w[0].sin(),
    "flat": lambda w: w.reshape(-1).sin(),
    "write": lambda w: torch.select_scatter(w, w[0] * 2, 0, 0).mul_(2),
    "sum": lambda w: (w * w).sum(-1),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("primal", "function"), crossed(PRIMALS, FUNCTIONS))
def test_forward_mode_of_views(primal: str, function: str) -> None:
    found = []
    for device in ("cpu", "jax"):
        x = PRIMALS[primal](torch.arange(12.0, device=device).reshape(3, 4))
        pushed = jvp(FUNCTIONS[function], (x,), (torch.full(x.shape, 0.5, device=device),))
        found.append([*pushed, jacfwd(FUNCTIONS[function])(x)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def test_combinations() -> None:
    for size, length, repeats in [
        (0, 2, False),
        (1, 1, True),
        (5, 2, False),
        (5, 3, True),
        (2, 3, False),
        (4, 0, False),
    ]:
        x = torch.arange(float(size))
        expected = torch.combinations(x, length, repeats)
        assert torch.equal(torch.combinations(x.to("jax"), length, repeats).cpu(), expected)
