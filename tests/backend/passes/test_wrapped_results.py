"""Results of compiled programs on the device: tensors of the device with their gradients, whatever made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from torch.utils._pytree import tree_leaves

import jaten_ops

from ...harness.crossings import crossed
from ...harness.passes import golden


def _after_break(x: torch.Tensor, device: str) -> Any:
    mask = torch.ones(3, 3, device=device).triu()
    torch._dynamo.graph_break()
    return mask @ x.to(device).t(), mask


def _written(x: torch.Tensor, device: str) -> Any:
    made = torch.zeros(3, device=device)
    made[0] = 5
    return made, made[1:], x.to(device)


def _branches(x: torch.Tensor, device: str) -> Any:
    makers = (lambda: torch.ones(2, device=device)), (lambda: torch.zeros(2, device=device))
    return torch.cond(x.sum() > 0, *makers), x.to(device)


def _of_values(x: torch.Tensor, device: str) -> Any:
    found = (x.detach().to(device) > 0).nonzero()
    return found, found + 1


PROGRAMS: dict[str, Callable[[torch.Tensor, str], Any]] = {
    "factory": lambda x, device: torch.ones(2, device=device),
    "range": lambda x, device: torch.arange(x.shape[0] + 1, device=device),
    "number": lambda x, device: torch.tensor([1.0, 2.0], device=device),
    "moved": lambda x, device: x.to(device) + 1,
    "views of what is moved": lambda x, device: (x.to(device), (y := x.to(device) * 2), y.view(-1), y.detach()),
    "with one of the device": lambda x, device: x.to(device) + torch.arange(3.0, device=device),
    "to the CPU and back": lambda x, device: (x.to(device).exp().cpu(), x.cpu().to(device)),
    "after a break": _after_break,
    "written": _written,
    "branches": _branches,
    "of values": _of_values,
}


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(("name", "given", "dynamic"), crossed(PROGRAMS, ["cpu", "jax"], [False, True]))
def test_tensors_of_the_device(name: str, given: str, dynamic: bool) -> None:
    program = PROGRAMS[name]
    values = torch.arange(1.0, 7.0).view(2, 3) - 2
    expected_x = values.clone().requires_grad_()
    x = values.to(given).requires_grad_()
    expected = tree_leaves(program(expected_x, "cpu"))
    got = tree_leaves(torch.compile(program, backend="jaten", dynamic=dynamic)(x, "jax"))
    assert all(type(t) is jaten_ops.Tensor for t in got if t.device.type == "jax")
    assert any(t.device.type == "jax" for t in got)
    torch.testing.assert_close([t.detach().cpu() + 0 for t in got], [t.detach() for t in expected])
    assert [t.requires_grad for t in got] == [t.requires_grad for t in expected]
    for leaf, results in ((expected_x, expected), (x, got)):
        losses = [(t.cpu() ** 2).sum() for t in results if t.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
            assert type(leaf.grad) is type(leaf)
    torch.testing.assert_close(None if x.grad is None else x.grad.cpu(), expected_x.grad)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_mask_that_one_program_makes_and_another_takes() -> None:
    mask = torch.compile(lambda n: torch.ones(n, n, device="jax").tril(), backend="jaten")(3)
    x = torch.arange(9.0).view(3, 3)
    got = torch.compile(lambda x, mask: x @ mask, backend="jaten")(x.to("jax"), mask)
    torch.testing.assert_close(got.cpu(), x @ torch.ones(3, 3).tril())
    torch.testing.assert_close((mask + 1).cpu(), torch.ones(3, 3).tril() + 1)


@pytest.mark.usefixtures("fresh_dynamo")
def test_hooks_of_saved_tensors_get_tensors_of_the_device() -> None:
    seen: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen.append(t)
        return t.cpu()

    x = torch.arange(3.0).to("jax").requires_grad_()
    compiled = torch.compile(lambda x: (x.exp() * torch.ones(3, device="jax")).sin(), backend="jaten")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to("jax")):
        compiled(x).sum().backward()
    values = torch.arange(3.0).requires_grad_()
    values.exp().sin().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), values.grad)
    assert seen
    assert all(torch.isfinite(t.cpu()).all() for t in seen)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_moved(self) -> None:
        got = golden("wrapped_results", lambda x: x.to("jax"), torch.ones(2))
        self.assertExpectedInline(
            got,
            """\
--- captured
l_x_: float32[2]
to: float32[2] on jax = to(l_x_, jax)
return (to,)

=>

l_x_: float32[2]
to: float32[2] on jax = to(l_x_, jax)
_returned: float32[2] on jax = _returned(to)
return (_returned,)

is_wrapped = True""",
        )


ZEROS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "remainder": lambda x, y: x % (y * 0 + 3) + y.new_zeros(()),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ZEROS)
def test_gradients_of_zeros(name: str, dynamic: bool) -> None:
    """ATen makes them from sizes alone, which is no operation on a tensor of the device."""
    x, y = (torch.rand(3, 4, device="jax", requires_grad=True) for _ in range(2))
    result = torch.compile(ZEROS[name], backend="jaten", dynamic=dynamic)(x, y)
    found = torch.autograd.grad(result.sum(), (x, y), materialize_grads=True)
    expected = torch.autograd.grad(ZEROS[name](x, y).sum(), (x, y), materialize_grads=True)
    assert [type(g) for g in found] == [jaten_ops.Tensor] * 2
    torch.testing.assert_close([g.cpu() for g in found], [g.cpu() for g in expected])
