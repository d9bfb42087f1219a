"""Outputs of compiled programs that share memory: which do, and what a write to one does to the others, as in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import expecttest
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters

from jaten_ops.xla import fingerprint

from ...harness.passes import golden, watched

Tensors = Sequence[torch.Tensor]
Break = Callable[[], None]


def _whole() -> None:
    """No break: the program is one graph."""


def _broken() -> None:
    torch._dynamo.graph_break()


class _Cache:
    """An object in which a program keeps a view between its calls."""

    held: torch.Tensor


def _same(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    cut()
    return y, y.contiguous(), y.view(y.shape)


def _view(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    cut()
    return y, y.view(-1), y.as_strided((2,), (1,), 1)


def _views_alone(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    cut()
    return y[1:], y[:-1], y.t()


def _chunks(x: torch.Tensor, cut: Break) -> Tensors:
    y = x + 1
    cut()
    return (*y.chunk(2), y)


def _split(x: torch.Tensor, cut: Break) -> Tensors:
    y = x + 1
    cut()
    return y.split(1, 1)


def _unbound(x: torch.Tensor, cut: Break) -> Tensors:
    y = x + 1
    cut()
    return (y, *y.unbind(1))


def _chain(x: torch.Tensor, cut: Break) -> Tensors:
    y = x.exp()
    z = y.t()[1:]
    cut()
    return z, z.unsqueeze(0)[..., -1], y.select(0, -1), y.diagonal()


def _expanded(x: torch.Tensor, cut: Break) -> Tensors:
    y = x[0] * 2
    cut()
    return y.expand(3, -1), y


def _strided(x: torch.Tensor, cut: Break) -> Tensors:
    y = (x * 2).t()
    z = y + 1
    cut()
    return z, z.t(), y


def _another_dtype(x: torch.Tensor, cut: Break) -> Tensors:
    y = x.detach() * 2
    cut()
    return y, y.view(torch.int32), torch.view_as_real(torch.complex(y, y))


def _complex(x: torch.Tensor, cut: Break) -> Tensors:
    y = torch.complex(x, x + 1)
    cut()
    return y, torch.view_as_real(y), y.real, y.imag


def _detached(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    cut()
    return y, y.detach(), y.detach().view(-1), y[0].detach()


def _of_input(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    cut()
    return x, x.view(-1), x[0], y, y[0], x.detach()


def _parts_of_input(x: torch.Tensor, cut: Break) -> Tensors:
    cut()
    return (*x.unbind(0), *x.chunk(2, 1))


def _written_between(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    z = y.view(-1)
    y.add_(1)
    cut()
    z.mul_(2)
    return y, z, y[0]


def _written_input(x: torch.Tensor, cut: Break) -> Tensors:
    y = x.detach()
    y.add_(1)
    cut()
    return y.view(-1), y[0], y * 2


def _part_of_input_written(x: torch.Tensor, cut: Break) -> Tensors:
    y = x.detach()
    y[0].mul_(2)
    cut()
    return y[0], y.t(), y.view(-1)[2:]


def _written_by_views(x: torch.Tensor, cut: Break) -> Tensors:
    y = x.detach()
    y.view(-1).mul_(2)
    y.t().unsqueeze(0).add_(1)
    cut()
    return y.t(), y.view(-1), y[1:], y


def _copied_to_input(x: torch.Tensor, cut: Break) -> Tensors:
    y, z = x.detach(), x.detach() * 2
    y.copy_(z)
    cut()
    return z, z.view(-1), y.view(-1)


def _kept(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    _Cache.held = y[0]
    cut()
    return y, _Cache.held


def _nothing(x: torch.Tensor, cut: Break) -> Tensors:
    y = x * 2
    cut()
    return y[:0], y[0:0].t(), y


def _numbers(x: torch.Tensor, cut: Break) -> Tensors:
    y = x.detach().mul(4).to(torch.int64)
    cut()
    return y, y[0], y.view(-1)


def _of_values(x: torch.Tensor, cut: Break) -> Tensors:
    y = x.detach()
    found, z = y[y > 0], y * 2
    cut()
    return found, found[1:], z, z.view(-1)


PROGRAMS = {p.__name__.strip("_"): p for p in (
    _same, _view, _views_alone, _chunks, _split, _unbound, _chain, _expanded, _strided, _another_dtype, _complex,
    _detached, _of_input, _parts_of_input, _written_between, _written_input, _part_of_input_written, _written_by_views,
    _copied_to_input, _kept, _nothing, _numbers, _of_values,
)}  # fmt: skip

MODES: dict[str, tuple[bool, Callable[[], Any]]] = {
    "": (False, contextlib.nullcontext),
    "grad": (True, contextlib.nullcontext),
    "no_grad": (True, torch.no_grad),
    "inference": (False, torch.inference_mode),
}


def _input(requires_grad: bool, device: str) -> torch.Tensor:
    x = torch.arange(1.0, 13.0).view(4, 3).to(device) - 5
    # no leaf, so that it may be written to
    return x.requires_grad_() * 1 if requires_grad else x


def _sharing(tensors: Tensors) -> list[list[int]]:
    """For each tensor, which are in its memory."""
    at = [t.untyped_storage().data_ptr() if t.numel() else -1 for t in tensors]
    return [[i for i, a in enumerate(at) if a == b] for b in at]


def _written(n: int, tensors: Tensors) -> Any:
    """The values of all tensors after a write to one; or the class of the error."""
    try:
        tensors[n].add_(3)
    except RuntimeError:
        return RuntimeError
    return [t.detach().cpu().resolve_conj() for t in tensors]


def _check(program: Callable[..., Tensors], cut: Break, mode: str, device: str, dynamic: bool) -> None:
    requires_grad, context = MODES[mode]
    compiled = torch.compile(program, backend="jaten", dynamic=dynamic, fullgraph=cut is _whole)
    with context():
        for n in range(len(program(_input(False, "cpu"), _whole))):
            x, given = _input(requires_grad, "cpu"), _input(requires_grad, device)
            expected, got = [*program(x, _whole), x], [*compiled(given, cut), given]
            if n == 0:
                assert _sharing(got) == _sharing(expected)
                assert [t.stride() for t in got] == [t.stride() for t in program(_input(False, device), _whole)] + [
                    (3, 1)
                ]
                assert [t.requires_grad for t in got] == [t.requires_grad for t in expected]
                assert [type(t) for t in got] == [type(given)] * len(got)
            is_written = [_written(n, tensors) for tensors in (expected, got)]
            if is_written[0] is not RuntimeError:  # of those that ATen refuses eagerly, some are not told from others
                torch.testing.assert_close(is_written[1], is_written[0])


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", ["written_input", "part_of_input_written", "copied_to_input"])
def test_what_is_written_to_inputs_of_sizes_that_change(name: str) -> None:
    _check(PROGRAMS[name], _whole, "no_grad", "jax", dynamic=True)


@pytest.mark.sampled(8)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_shares_memory_sees_what_is_written(name: str, device: str) -> None:
    _check(PROGRAMS[name], _whole, "", device, dynamic=False)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("cut", [_whole, _broken])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_each_way_to_run_it(
    name: str, device: str, mode: str, cut: Break, dynamic: bool, request: pytest.FixtureRequest
) -> None:
    if (name, mode, cut, device) == ("written_between", "inference", _broken, "cpu"):
        reason = (
            "AOTAutograd makes the outputs' views of an input that shares its storage wrongly, for aot_eager as well"
        )
        raises = BackendCompilerFailed if dynamic else AssertionError
        request.applymarker(pytest.mark.xfail(strict=True, raises=raises, reason=reason))
    _check(PROGRAMS[name], cut, mode, device, dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_graph_that_is_found_on_the_disk(
    device: str, requires_grad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JATEN_CACHE", "1")
    monkeypatch.setenv("JATEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fingerprint, "of_package", lambda: "as it is")  # somebody may be writing to it
    for found in (False, True):
        torch._dynamo.reset()
        counters.clear()
        _check(_chain, _whole, "grad" if requires_grad else "", device, dynamic=False)
        assert counters["aot_autograd"]["autograd_cache_hit"] == found


def _results_of_forward(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The result of a compiled function, and how many results each of its graphs has."""
    counts: list[int] = []
    with watched("output_views", lambda gm: counts.append(len(gm.graph.output_node().args[0]))):
        return torch.compile(fn, backend="jaten")(*inputs), counts


SAVED_OUTPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last).exp(),
    "taken_on": lambda x: (y := x + 1) * y.sigmoid().detach(),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", SAVED_OUTPUTS)
def test_saved_outputs_are_no_second_results(name: str) -> None:
    fn, x = SAVED_OUTPUTS[name], torch.randn(4, 8, 64, 16, requires_grad=True)
    found, counts = _results_of_forward(fn, x)
    assert counts[0] == 1 + (name == "taken_on")
    assert found.stride() == fn(x).stride()
    grad = torch.randn_like(found)
    expected = torch.autograd.grad(fn(x), x, grad)
    torch.testing.assert_close(torch.autograd.grad(found, x, grad, retain_graph=True), expected)
    if name != "taken_on":  # what it saves the user does not see
        found.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(found, x, grad)


JOINED: dict[str, Callable[..., torch.Tensor]] = {
    "channels": lambda x, y: torch.cat([x, y], 1),
    "rows": lambda x, y: torch.cat([x, y], 0),
    "stacked": lambda x, y: torch.stack([x, y], 1).view(8, 8, 64, 16),
    "both": lambda x, y: torch.cat([x, y * 2], 1),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", JOINED)
def test_gradients_that_are_parts_of_another_are_views_of_it(name: str) -> None:
    fn, xs = JOINED[name], [torch.randn(4, 8, 64, 16, requires_grad=True) for _ in range(2)]
    counts: list[int] = []
    with watched("output_views", lambda gm: counts.append(len(gm.graph.output_node().args[0]))):
        found = torch.compile(fn, backend="jaten")(*xs)
        grad = torch.randn_like(found)
        got = torch.autograd.grad(found, xs, grad, retain_graph=True)
        found.backward(grad)
    expected = torch.autograd.grad(fn(*xs), xs, grad)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close([x.grad for x in xs], list(expected))
    assert counts[-1] == (name == "both")
    assert [t.stride() for t in got[:1]] == [t.stride() for t in expected[:1]]


def test_views_of_known_sizes_are_saved_whatever_the_strides() -> None:
    """Dynamo leaves strides open that change from call to call."""
    weight = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.reshape(-1, 3, 2) @ weight).sin().sum()

    base = torch.linspace(-2, 3, 64 * 96, dtype=torch.float64).view(64, 96)
    compiled = torch.compile(fn, backend="jaten")
    for x in (base.t().contiguous().t(), torch.stack([base, base], -1)[..., 1], base[:1].expand(64, 96), base):
        expected = torch.autograd.grad(fn(x), weight)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), weight), expected)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_views(self) -> None:
        got = golden("output_views", lambda x: ((y := x * 2), y.view(-1), x[0]), torch.ones(2, 3).to("jax"))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[2, 3] on jax
mul: float32[2, 3] on jax = aten::mul.Tensor(arg0_1, 2)
view: float32[6] on jax = aten::view(mul, [-1])
select: float32[3] on jax = aten::select.int(arg0_1, 0, 0)
return (mul, view, select)

=>

arg0_1: float32[2, 3] on jax
mul: float32[2, 3] on jax = aten::mul.Tensor(arg0_1, 2)
view: float32[6] on jax = aten::view(mul, [-1])
select: float32[3] on jax = aten::select.int(arg0_1, 0, 0)
return (mul,)

seen = 1
views of [0] and 1 results: [1, 2, 3]
  view of 1: ([-1],)
  select.int of 0: (0, 0)""",
        )
