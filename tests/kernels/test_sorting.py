"""The indices of what is sorted or chosen by its values, which are not specified where elements are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jaten_ops  # noqa: F401  # the device jax

from ..harness.paths import compile_whole

nan, inf = float("nan"), float("inf")
OPERANDS: dict[str, Tensor] = {
    "ties": torch.tensor([[3.0, 1.0, 3.0, 2.0], [2.0, 2.0, 2.0, 1.0], [3.0, 2.0, 1.0, 2.0]]),
    "nan and zeros": torch.tensor([[nan, 0.0, -0.0, 1.0], [inf, nan, nan, -inf], [-0.0, 0.0, -1.0, -0.0]]),
    "bfloat16": torch.tensor([[1.5, -2.0, 1.5], [0.0, -0.0, nan]], dtype=torch.bfloat16),
    "int64": torch.tensor([[5, 2**62 + 1, 5, 2**62], [-1, 0, -1, 3]]),
    "bool": torch.tensor([[True, False, True], [False, False, True]]),
}


def _run(path: str, of: Callable[[Tensor], Any], x: Tensor) -> Any:
    torch._dynamo.reset()  # one function is compiled for many arguments
    fn = compile_whole(of) if "compiled" in path else of
    return fn(x.to("jax") if "device" in path else x)


def _same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def _assert_sorted(found: Any, x: Tensor, dim: int, descending: bool, stable: bool) -> None:
    values, indices = (r.cpu() for r in found)
    by_aten = torch.sort(x, dim=dim, descending=descending, stable=True)
    _same(values, by_aten.values)
    _same(x.gather(dim, indices), values)
    _same(indices.sort(dim).values, torch.ones_like(indices).cumsum(dim) - 1)  # each once
    if stable:
        assert torch.equal(indices, by_aten.indices)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", ["direct", "on the device", "compiled", "compiled on the device"])
@pytest.mark.parametrize("name", OPERANDS)
def test_sort(name: str, path: str) -> None:
    x = OPERANDS[name]
    for dim, descending, stable in ((0, False, True), (-1, True, True), (-1, False, False)):
        if path == "direct":
            found = torch.ops.jaten.sort.stable(x, stable=stable, dim=dim, descending=descending)
        else:

            def of(x: Tensor, dim: int = dim, descending: bool = descending, stable: bool = stable) -> Any:
                return torch.sort(x, dim=dim, descending=descending, stable=stable)

            found = _run(path, of, x)
        _assert_sorted(found, x, dim, descending, stable)


# What chooses some elements of each row: values, and where they stand.
CHOOSING: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "topk": (lambda x: torch.topk(x, 2), lambda x: torch.ops.jaten.topk(x, 2)),
    "least": (lambda x: torch.topk(x, 2, 0, largest=False), lambda x: torch.ops.jaten.topk(x, 2, 0, False)),
    "kthvalue": (lambda x: torch.kthvalue(x, 2), lambda x: torch.ops.jaten.kthvalue(x, 2)),
    "mode": (lambda x: torch.mode(x, 0), lambda x: torch.ops.jaten.mode(x, 0)),
}
_DIMS = {"least": 0, "mode": 0}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", ["direct", "on the device", "compiled", "compiled on the device"])
@pytest.mark.parametrize("name", CHOOSING)
def test_chosen(name: str, path: str) -> None:
    of, direct = CHOOSING[name]
    dim = _DIMS.get(name, -1)
    for x in (OPERANDS["ties"], OPERANDS["int64"]):
        values, indices = (r.cpu() for r in (direct(x) if path == "direct" else _run(path, of, x)))
        _same(values, of(x).values)
        lost = indices.dim() < x.dim()
        rows = indices.unsqueeze(dim) if lost else indices
        _same(x.gather(dim, rows), values.unsqueeze(dim) if lost else values)
        assert all(len(set(row)) == len(row) for row in rows.movedim(dim, -1).flatten(0, -2).tolist())


@pytest.mark.parametrize("path", ["on the device", "compiled", "compiled on the device"])
def test_argsort_and_unique(path: str) -> None:
    x = OPERANDS["ties"]
    found = _run(path, lambda x: torch.argsort(x, stable=True, descending=True), x)
    assert torch.equal(found.cpu(), torch.argsort(x, stable=True, descending=True))
    values, inverse, counts = (
        r.cpu() for r in _run(path, lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    )
    _same(values[inverse], x)
    _same(values, x.unique())
    assert torch.equal(counts, (values[:, None] == x.flatten()).sum(1))


@pytest.mark.parametrize("path", ["on the device", "compiled", "compiled on the device"])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_by_a_sorter(path: str, right: bool) -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 1.0], [0.0, 5.0, -1.0, 4.0]])

    def search(x: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(x, x * 0.5 + 1, right=right, sorter=x.argsort(-1))

    _same(_run(path, search, x).cpu(), search(x))
