"""`make_fx` and `torch.func.linearize` on the device: programs that are recorded, and run again on other values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import jaten_ops

Program = Callable[[torch.Tensor], torch.Tensor]


PROGRAMS: dict[str, Program] = {
    "of one": lambda x: x.sin() * 2,
    "reduced": lambda x: (x * x).sum(1),
    "views": lambda x: x[1:, ::2].t().reshape(-1) * x[0, 0],
    "a constant": lambda x: x @ torch.eye(4, device=x.device) + torch.ones(4, device=x.device),
    "several results": lambda x: x.sort(dim=1)[0] + torch.var_mean(x, 1, keepdim=True)[1],
    "written": lambda x: torch.zeros_like(x).index_add(0, torch.arange(3, device=x.device), x.exp()),
    "in place": lambda x: x.clone().mul_(x).add_(1),
    "softmax": lambda x: torch.softmax(x, -1).log(),
}


def _input() -> torch.Tensor:
    return torch.linspace(0.1, 2, 12).view(3, 4)


def _holds(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert isinstance(got, jaten_ops.Tensor)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_program_runs_on_other_values(name: str) -> None:
    program, x = PROGRAMS[name], _input()
    recorded = make_fx(program)(torch.zeros(3, 4, device="jax"))
    _holds(recorded(x.to("jax")), program(x))
    got = {n.target for n in recorded.graph.nodes if n.op == "call_function"}
    assert got == {n.target for n in make_fx(program)(torch.zeros(3, 4)).graph.nodes if n.op == "call_function"}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("name", PROGRAMS)
def test_linearize(name: str) -> None:
    program, x, tangent = PROGRAMS[name], _input(), torch.linspace(-1, 1, 12).view(3, 4)
    expected, push = torch.func.linearize(program, x)
    got, push_on_jax = torch.func.linearize(program, x.to("jax"))
    _holds(got, expected)
    _holds(push_on_jax(tangent.to("jax")), push(tangent))


def test_parameters_from_outside_are_constants_of_the_program() -> None:
    layer = nn.Linear(4, 3).to("jax")
    recorded = make_fx(lambda x: layer(x).relu())(torch.zeros(2, 4, device="jax"))
    x = torch.randn(5, 4, device="jax")
    torch.testing.assert_close(recorded(x), layer(x).relu())
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(recorded(x), layer(x).relu())
