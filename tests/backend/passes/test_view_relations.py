"""View relations, as autograd knows them, among the outputs of compiled programs: the same as eagerly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import expecttest
import pytest
import torch

import jaten_ops  # noqa: F401  # the backend

from ...harness.passes import golden

Tensors = Sequence[torch.Tensor]


def _view_and_owner(x: torch.Tensor) -> Tensors:
    y = x * 2
    return y, y.view(-1)


def _parts(x: torch.Tensor) -> Tensors:
    y = x * 2
    return y[1:], y, y.t()


def _of_input(x: torch.Tensor) -> Tensors:
    return x.view(-1), x.t(), x * 2


def _after_a_break(x: torch.Tensor) -> Tensors:
    y = x * 2
    v = y.view(-1)
    torch._dynamo.graph_break()
    return y, v, v[2:]


PROGRAMS: dict[str, Callable[[torch.Tensor], Tensors]] = {
    "view and owner": _view_and_owner,
    "parts": _parts,
    "of an input": _of_input,
    "after a break": _after_a_break,
}


def _told(call: Callable[[torch.Tensor], Tensors], device: str, requires_grad: bool, n: int) -> Any:
    """The state after a write to an output, by which all of its memory gets a gradient, and that gradient."""
    x = torch.arange(1.0, 7.0).view(2, 3).to(device).requires_grad_(requires_grad)
    given = x * 1
    tensors = [*call(given), given]
    factor = torch.tensor(2.0, device=device, requires_grad=True)
    tensors[n].mul_(factor)
    known = [(t.requires_grad, t._is_view(), t._version) for t in tensors]
    torch.stack([(t**2).sum() for t in tensors if t.requires_grad]).sum().backward()
    gradients = [None if t.grad is None else t.grad.cpu() for t in (factor, x)]
    return known, gradients, [t.detach().cpu() for t in tensors]


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_that_brings_a_gradient(name: str, device: str, requires_grad: bool) -> None:
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="jaten")
    for n in range(3):
        expected, got = (_told(f, d, requires_grad, n) for f, d in ((program, "cpu"), (compiled, device)))
        assert got[0] == expected[0]
        torch.testing.assert_close(got[1:], expected[1:])


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_which_is_a_view(device: str, mode: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    def program(x: torch.Tensor) -> Tensors:
        y = x + 1
        return y, y.t(), y.detach(), y[0]

    x = torch.ones(2, 3, device=device)
    with mode():
        expected, got = program(x), torch.compile(program, backend="jaten")(x)
        assert [t.is_inference() for t in got] == [t.is_inference() for t in expected]
        assert [t._is_view() for t in got] == [t._is_view() for t in expected]
        assert [t._base is got[0] for t in got] == [t._base is expected[0] for t in expected]


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_views(self) -> None:
        got = golden("view_relations", lambda x: ((y := x * 2), y.view(-1), x.t()), torch.ones(2, 3).to("jax"))
        self.assertExpectedInline(
            got,
            """\
--- captured
l_x_: float32[2, 3] on jax
y: float32[2, 3] on jax = mul(l_x_, 2)
view: float32[6] on jax = view(y, -1)
t: float32[3, 2] on jax = t(l_x_)
return (y, view, t)

relations = [(1, False, 0), (2, True, 0)]""",
        )
