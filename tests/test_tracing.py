"""Constants on the device in a compiled program: `torch.tensor` makes them out of sight of what captures it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode

from jaten_ops import tracing

DEVICES = ("cpu", "jax")

CONSTANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floats": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "ints": lambda x: torch.tensor([1, 2], device=x.device),
    "one element": lambda x: torch.tensor([3.0], device=x.device),
    "none": lambda x: torch.tensor([], dtype=x.dtype, device=x.device),
    "a number": lambda x: torch.tensor(2.0, device=x.device),
    "moved": lambda x: torch.tensor([1.0, 2.0]).to(x.device),
    "a moved number": lambda x: torch.tensor(2.0).to(x.device),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0], device=x.device),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "of lists": lambda x: torch.tensor([[True, False], [False, True]], device=x.device),
}


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()  # all rows are one code object for Dynamo, which gives up after a few


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("device", DEVICES)
def test_constants(device: str, name: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        constant = CONSTANTS[name](x)
        return torch.cat([constant.reshape(-1), x]), constant.sum() * x

    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    given = x.to(device).requires_grad_()
    expected = program(x.requires_grad_())
    results = torch.compile(program, backend="jaten", fullgraph=True)(given)
    for result, truth in zip(results, expected, strict=True):
        assert result.device.type == device
        torch.testing.assert_close(result.cpu(), truth)
    torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    torch.autograd.backward(expected, [torch.ones_like(r) for r in expected])
    torch.testing.assert_close(given.grad.cpu(), x.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_a_constant_that_is_written_to(device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        total = torch.tensor(0.0, device=x.device)
        for row in x:
            total += row.sum()
        return total

    x = torch.arange(6.0).reshape(3, 2)
    compiled = torch.compile(program, backend="jaten", fullgraph=True)
    for _ in range(2):  # the constant is as it was
        assert compiled(x.to(device)).item() == 15


@pytest.mark.parametrize("device", DEVICES)
def test_the_value_of_a_constant(device: str) -> None:
    compiled = torch.compile(lambda x: x * torch.tensor(2, device=x.device).item(), backend="jaten", fullgraph=True)
    assert compiled(torch.arange(3.0, device=device)).tolist() == [0, 2, 4]


def test_constants_of_other_devices_are_known_as_before() -> None:
    with FakeTensorMode():
        assert torch.tensor(3).item() == 3
        assert (torch.tensor(3) + 1).item() == 4


def test_the_flag_that_torch_compiles_is_computed_with_as_a_bool() -> None:
    """Libraries combine it: `tracing |= torch.compiler.is_compiling()`."""
    for flag in (False, True):
        tracing.set_compiling(flag)
        try:
            found = torch.compiler.is_compiling()
            assert bool(found) is flag and found == flag and repr(found) == repr(flag)
            assert (found | False) is (False | found) is flag
            assert (found & True) is (True & found) is flag
            assert (found ^ True) is (True ^ found) is not flag
        finally:
            tracing.set_compiling(False)
