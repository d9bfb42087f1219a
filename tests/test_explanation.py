"""`explain` says what a function becomes, on each way of compiling it, and changes nothing."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jaten_ops

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _parted(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def _of_values(x: torch.Tensor) -> torch.Tensor:
    return x.exp().nonzero().sum()


WAYS: dict[str, tuple[Callable[[], Any], str, list[str], int]] = {
    "a module": (_model, "cpu", ["addmm", "mm"], 0),
    "a module of torch.compile": (lambda: torch.compile(_model(), backend="jaten"), "cpu", ["addmm", "mm"], 0),
    "a module of the device": (lambda: _model().to("jax"), "jax", ["addmm", "mm"], 0),
    "a function": (lambda: torch.sin, "cpu", ["sin"], 0),
    "a graph break": (lambda: torch.compile(_parted, backend="jaten"), "cpu", ["sin", "cos"], 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WAYS)
def test_executables_have_their_operators(name: str) -> None:
    make, device, operators, breaks = WAYS[name]
    found = jaten_ops.explain(make(), torch.ones(3, 4, device=device))
    assert len(found.compiled) == len(operators) and len(found.graph_breaks) == breaks and not found.outside
    for each, operator in zip(found.compiled, operators, strict=True):
        assert each.operators[operator] >= 1 and each.seconds > 0 and each.inputs
        assert "bytes: inputs" in str(found) and operator in str(found)


def test_gradients_and_values_are_as_before() -> None:
    model = _model()
    model(torch.ones(3, 4)).sum().backward()
    before = [(p.detach().clone(), p.grad) for p in model.parameters()]
    x = torch.ones(3, 4, requires_grad=True)
    assert len(jaten_ops.explain(model, x).compiled) == 2
    assert x.grad is None
    for parameter, (value, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value) and parameter.grad is gradient


@pytest.mark.parametrize("captures", [False, True])
def test_what_runs_outside_of_executables(captures: bool) -> None:
    """Operators whose results have a size that depends on values part a graph."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=captures):
        found = jaten_ops.explain(_of_values, torch.ones(3))
    assert bool(found.outside) is captures and bool(found.graph_breaks) is not captures
    assert "nonzero" in str(found)


def test_a_step_is_compiled_and_not_run() -> None:
    model = nn.Linear(4, 2).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x, before = torch.ones(3, 4, device="jax"), model.weight.detach().cpu().clone()
    found = jaten_ops.explain(jaten_ops.compile_step(step), x)
    assert [c.name.rpartition(".")[2] for c in found.compiled] == ["step"] and found.compiled[0].inputs == (
        "float32[3, 4]",
    )
    assert torch.equal(model.weight.detach().cpu(), before)


def test_a_page_has_programs_with_the_names_of_modules(tmp_path: Path) -> None:
    found = jaten_ops.explain(_model(), torch.ones(3, 4))
    found.save(tmp_path / "pages" / "explanation.html")
    page = (tmp_path / "pages" / "explanation.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.count("<details>") == 2 and "0/addmm" in page
    assert str(found).partition("\n")[0] in page


def test_executables_of_one_graph_have_their_own_programs(tmp_path: Path) -> None:
    def parted(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x[x > 0].exp().log() + 1  # each part begins at this line
        return x

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = jaten_ops.explain(torch.compile(parted, backend="jaten", fullgraph=True), torch.ones(3))
    titles = [each.name + each.source for each in found.compiled]
    assert len(set(titles)) < len(titles)
    found.save(page := tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    programs = [part.partition("</pre>")[0] for part in text.split("<summary>program</summary><pre>")[1:]]
    assert len(programs) == len(found.compiled) and len(set(programs)) > 1
    for program, each in zip(programs, found.compiled, strict=True):
        entry = each.executable.as_text().partition("ENTRY ")[2].partition(" stack_frame_id")[0]
        assert html.escape(entry) in program and "FileNames" not in program
