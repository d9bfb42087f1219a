"""Second derivatives through compiled graphs are refused, and never left out of a sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "saves its input": lambda x: x.sin() * x,
    "saves its result": lambda x: x.exp(),
    "saves what is between": lambda x: (x * 2).tanh().exp(),
}

DEPENDENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the slope": lambda slope, x: slope.sum(),
    "the slope, and the input": lambda slope, x: (slope * x).sum(),
    "the slope of a slope's function": lambda slope, x: (slope.tanh() + x).square().sum(),
}


def _operands(device: str) -> tuple[Tensor, Tensor]:
    x, other = (torch.tensor([1.0, 2.0]).to(device).requires_grad_() for _ in range(2))
    return x, other


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("allow_unused", [False, True])
@pytest.mark.parametrize("dependent", DEPENDENTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_second_derivatives_are_refused(program: str, dependent: str, allow_unused: bool, device: str) -> None:
    """torch's engine would find no way to the input, or not all ways."""
    compiled = torch.compile(PROGRAMS[program], backend="jaten")
    x, other = _operands(device)
    first, none = torch.autograd.grad(compiled(x * 1).sum(), (x, other), create_graph=True, allow_unused=True)
    assert none is None
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(DEPENDENTS[dependent](first, x), x, allow_unused=allow_unused)
    with pytest.raises(RuntimeError, match="to not have been used"):
        torch.autograd.grad((x * 2).sum(), other)


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_beside_them_are_taken(program: str, device: str) -> None:
    """A slope times a tensor has one for the tensor, and none for a tensor on which nothing depends."""
    x, other = _operands(device)
    found = []
    for run in (PROGRAMS[program], torch.compile(PROGRAMS[program], backend="jaten")):
        (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((slope * other).sum(), other)[0])
        unused = torch.ones(2, device=device, requires_grad=True)
        assert torch.autograd.grad(slope.sum() + other.sum(), unused, allow_unused=True) == (None,)
    torch.testing.assert_close(found[1], found[0])


def test_backward_for_inputs_is_refused() -> None:
    x, other = _operands("jax")
    (slope,) = torch.autograd.grad(torch.compile(torch.exp, backend="jaten")(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        (slope * x * other).sum().backward(inputs=[x])
