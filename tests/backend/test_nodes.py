"""The names that operations have in XLA's program: of the module and the operator that they come from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaten_ops  # noqa: F401  # the backend
from jaten_ops.backend import lowering
from jaten_ops.backend.nodes import scope_of
from jaten_ops.backend.serialized_graph import graph_of, plan_of
from jaten_ops.xla import executables

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.q_proj(x).softmax(-1))
        return found


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def _in_a_function(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: module(x).exp()


def _itself(module: nn.Module) -> nn.Module:
    return module


IMAGES = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.Conv2d(4, 4, 3, stride=2))
NAMES = {
    "a module": (
        Model(), (2, 4), _itself,
        ["layers.0.q_proj/addmm", "layers.1/_softmax", "backward/layers.1.out/mm", "backward/layers.0/_softmax"],
    ),
    "a function": (
        Model(), (2, 4), _in_a_function,
        ["module.layers.0.q_proj/addmm", "module/add", "exp", "backward/module.layers.0.q_proj/mm"],
    ),
    "convolutions": (
        IMAGES, (2, 3, 9, 9), _itself,
        ["0/convolution", "1.0/_native_batch_norm", "1.1/relu", "backward/2/convolution_backward"],
    ),
    "weights that an optimizer might take in rows": (
        nn.Sequential(nn.Linear(16, 64), nn.Tanh()), (4, 16), _itself, ["0/addmm", "1/tanh", "backward/1/tanh_backward"]
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_operations_have_the_names_of_modules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, shape, use, expected = NAMES[name]
    found: list[str] = []
    compiled = executables.compiled

    def noted(lowered: Any) -> Any:
        found.extend(re.findall(r'op_name="jit\(run\)/([^"]*)"', lowered.compile().as_text()))
        return compiled(lowered)

    monkeypatch.setattr(executables, "compiled", noted)
    torch.compile(use(module), backend="jaten")(torch.randn(shape)).square().sum().backward()
    for start in expected:
        assert any(each.startswith(start) for each in found), (start, sorted(set(found)))
    assert not [each for each in found if "//" in each]


def test_names_are_kept_with_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[torch.fx.GraphModule] = []
    lowered = lowering.Lowered.__init__

    def noted(self: Any, gm: torch.fx.GraphModule, *args: Any) -> None:
        graphs.append(gm)
        lowered(self, gm, *args)

    monkeypatch.setattr(lowering.Lowered, "__init__", noted)
    torch.compile(Model(), backend="jaten")(torch.randn(3, 4)).sum().backward()
    assert len(graphs) == 2
    for graph in graphs:
        plan = plan_of(graph)
        assert plan is not None
        names = [scope_of(node) for node in graph_of(plan).graph.nodes if node.op == "call_function"]
        assert names == [scope_of(node) for node in graph.graph.nodes if node.op == "call_function"]
        told = "\n".join(f"{n.name} {n.meta.get('seq_nr')} {scope_of(n)}" for n in graph.graph.nodes)
        assert any("layers.1.q_proj" in name for name in names), told
