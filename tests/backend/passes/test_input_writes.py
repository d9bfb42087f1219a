"""Compiled programs that give a tensor other memory, as `x.data = y` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch

import jaten_ops  # noqa: F401  # the device jax

from ...harness.passes import golden

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _new(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = x * 2
    return p.sin()


def _of_another(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = x
    return p.sin()


def _beside_a_write(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = x * 2
    x.add_(1)
    return p.sin() + x.sum()


def _transposed(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = x.t() * 1
    return (p * 2).sum(1)


def _scaled(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        p.data *= 0.5
    return p * x


def _returns_what_it_writes(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = p.data.contiguous()
    x.mul_(2).t().sin_()
    return x


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "new": _new,
    "of another": _of_another,
    "beside a write": _beside_a_write,
    "transposed": _transposed,
    "scaled": _scaled,
    "returns what it writes": _returns_what_it_writes,
}


def _run(fn: Callable[..., torch.Tensor], device: str, trains: bool) -> list[Any]:
    """All that can be seen of three calls."""
    generator = torch.Generator().manual_seed(0)
    p, x = (torch.randn(3, 3, generator=generator).to(device) for _ in range(2))
    p = torch.nn.Parameter(p, requires_grad=trains)
    seen: list[Any] = []
    for _ in range(3):
        y = fn(p, x)
        if y.requires_grad:
            y.sum().backward()
        seen += [t.detach().cpu().clone() for t in (y, p, x)]
    return [*seen, p.is_leaf, p.data_ptr() == x.data_ptr(), None if p.grad is None else p.grad.cpu()]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_without_compiling(name: str, device: str, trains: bool) -> None:
    fn = PROGRAMS[name]
    got, expected = (_run(f, device, trains) for f in (torch.compile(fn, backend="jaten"), fn))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(expected, _run(fn, "cpu", trains))


def test_strides_are_those_of_what_is_given() -> None:
    p, x = torch.nn.Parameter(torch.ones(3, 3)), torch.ones(3, 3)
    torch.compile(_transposed, backend="jaten")(p, x)
    assert p.stride() == (1, 3)


def test_the_device_tells_what_to_write_where_a_graph_may_not_break() -> None:
    x = torch.ones(3, 3, device="jax")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="copy_"):
        torch.compile(_new, backend="jaten", fullgraph=True)(x.clone(), x)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_other_memory(self) -> None:
        got = golden("input_writes", _new, torch.ones(2), torch.ones(2))
        # torch 2.15 has an operator of its own for `x.data = y`
        got = got.replace("shallow_copy_data_: ", "set_: ").replace("shallow_copy_data_.default", "set_.source_Tensor")
        got = got.replace("shallow_copy_data_(", "set_.source_Tensor(")
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[2]
arg1_1: float32[2]
mul: float32[2] = aten::mul.Tensor(arg0_1, 2)
sin: float32[2] = aten::sin(mul)
set_: float32[2] = aten::set_.source_Tensor(arg1_1, mul)
return (sin,)

=>

arg0_1: float32[2]
arg1_1: float32[2]
mul: float32[2] = aten::mul.Tensor(arg0_1, 2)
sin: float32[2] = aten::sin(mul)
return (mul, sin)

writes = [(1, 'aten.set_.source_Tensor')]""",
        )
