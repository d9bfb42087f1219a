"""`torch._dynamo.reset` releases what was compiled, with all of the program."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaten_ops
from jaten_ops.backend import executable

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _model(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(device)


def _inference(device: str, **options: Any) -> None:
    with torch.no_grad():
        torch.compile(_model(device), backend="jaten", **options)(torch.ones(2, 4, device=device))


def _training(device: str, **options: Any) -> None:
    model = _model(device)
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="jaten", **options)
    for _ in range(2):
        compiled(torch.ones(2, 4, device=device)).sum().backward()
        optimizer.step()


def _per_sample(device: str) -> None:
    gradients = torch.func.vmap(torch.func.grad(lambda x: (x**3).sum()))
    torch.compile(gradients, backend="jaten")(torch.ones(3, 2, device=device))


def _graph_break(device: str) -> None:
    model = _model(device)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        torch._dynamo.graph_break()
        return (y * 2).sum()

    torch.compile(run, backend="jaten")(torch.ones(2, 4, device=device)).backward()


def _kept_results(device: str) -> Any:
    return torch.compile(lambda x: (x * 2, x + 1), backend="jaten")(torch.ones(3, device=device))


WAYS: dict[str, Callable[[str], Any]] = {
    "inference": _inference,
    "open sizes": lambda device: _inference(device, dynamic=True),
    "training": _training,
    "training, open sizes": lambda device: _training(device, dynamic=True),
    "gradients of samples": _per_sample,
    "graph break": _graph_break,
    "kept results": _kept_results,
}


def _compiled_since(known: set[int]) -> list[Any]:
    """The executables of JAX that are there, without the known ones."""
    gc.collect()
    return [
        o for o in gc.get_objects() if type(o).__name__ == "MeshExecutable" and id(o) not in known
    ]  # a class without a public name


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("way", WAYS)
def test_a_reset_releases_programs(way: str, device: str) -> None:
    WAYS[way](device)  # what operators between graphs compile is kept for all programs
    torch._dynamo.reset()
    known, graphs = {id(o) for o in _compiled_since(set())}, len(executable._EXECUTABLES)
    results = WAYS[way](device)
    assert _compiled_since(known)
    torch._dynamo.reset()
    assert not _compiled_since(known)
    if way != "graph break":  # torch keeps its own part of such a program
        assert len(executable._EXECUTABLES) <= graphs
    del results


def test_a_program_of_before_a_reset_runs_after_it() -> None:
    x = torch.ones(3, requires_grad=True)
    result = torch.compile(lambda x: x.exp().sum(), backend="jaten")(x)
    torch._dynamo.reset()
    result.backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_steps_go_with_what_holds_them() -> None:
    def run() -> None:
        model = _model("cpu")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @jaten_ops.compile_step
        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step(torch.ones(2, 4))

    run()
    known = {id(o) for o in _compiled_since(set())}
    run()
    assert not _compiled_since(known)
