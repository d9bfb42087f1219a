"""Gradients of programs that write to what they have read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch import nn

from ...harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _selected(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    result = (memory.index_select(0, index) * weight).sum()
    memory.add_(1)
    return result


def _indexed(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    result = (memory[index] * weight).sum()
    memory.add_(1)
    return result


def _written_first(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    rows = memory[index].sin()
    memory.mul_(2)
    return (rows * weight).sum()


def _without_grad(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    result = (memory.exp()[index] * weight).sum()
    with torch.no_grad():
        memory.copy_(memory.sin())
    return result


def _of_a_view(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    result = (memory.t()[1:].cos() * weight[: len(memory)].t()[1:]).sum()
    memory[0].zero_()
    return result


def _of_parts(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    first, _, last = memory.split(2)
    result = (first.cos() * weight[:2]).sum() + (last[torch.zeros_like(index)] * weight).sum()
    memory.add_(1)
    return result


def _rows_written(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    rows = memory[index] * 2
    memory.index_add_(0, index, rows.detach())
    return (rows * weight).square().sum()


def _written_twice(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    one = memory[index].sin()
    memory.add_(1)
    two = memory[index].cos()
    memory.mul_(3)
    return (one * weight + two * weight.square()).sum() + (memory.tanh()[index] * weight).sum()


def _of_the_weight(memory: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Autograd itself keeps rows of a clone."""
    rows = weight * memory.clone()[index]
    memory.copy_(rows.detach()[: len(memory)])
    return rows.sum()


PROGRAMS: dict[str, Program] = {
    fn.__name__.strip("_"): fn
    for fn in (
        *(_selected, _indexed, _written_first, _without_grad, _of_a_view, _of_parts, _rows_written),
        *(_written_twice, _of_the_weight),
    )
}


def _given(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    memory, weight, index = torch.randn(5, 3), torch.randn(12, 3), torch.arange(12) % 5
    return memory.to(device), weight.to(device).requires_grad_(), index.to(device)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_what_autograd_itself_keeps_must_not_be_written_to(device: str) -> None:
    def fn(memory: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result = (memory * weight[:5]).sum()
        memory.add_(1)
        return result

    memory, weight, _ = _given(device)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.compile(fn, backend="jaten")(memory, weight).backward()


READERS: dict[str, Program] = {
    "index": lambda memory, weight, index: (memory[index] * weight).sum(),
    "index_select": lambda memory, weight, index: (memory.index_select(0, index).sin() * weight).sum(),
    "gather": lambda memory, weight, index: (memory.gather(0, index[:, None].expand(12, 3)) * weight).sum(),
    "take": lambda memory, weight, index: (
        memory.take(index[:, None] + torch.arange(3, device=index.device)) * weight
    ).sum(),
    "view": lambda memory, weight, index: (memory.t()[:, index].t() * weight).sum(),
}


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize(("program", "device", "dynamic"), crossed(PROGRAMS | READERS, ["cpu", "jax"], [False, True]))
def test_gradients_and_what_is_written(program: str, device: str, dynamic: bool, between: bool) -> None:
    """Written to by the program, or between its forward and its backward pass, or both."""
    fn = (PROGRAMS | READERS)[program]
    dynamic = dynamic and fn is not _of_parts  # their number fixes a size
    found = []
    for place, run in (("cpu", fn), (device, torch.compile(fn, backend="jaten", dynamic=dynamic))):
        memory, weight, index = _given(place)
        result = run(memory, weight, index)
        if between:
            memory.add_(1)
        result.backward()
        assert weight.grad is not None
        found.append((weight.grad.cpu(), memory.cpu()))
    torch.testing.assert_close(*reversed(found))


class Bank(nn.Module):
    """Rows of a buffer that each call reads and replaces, as the memory of nodes in a network over time."""

    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.linspace(-1, 1, 15).reshape(5, 3))
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        new = self.cell(x, self.rows[index])
        self.rows[index] = new.detach()
        return new


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_memory_over_several_steps(device: str) -> None:
    torch.manual_seed(0)
    bank, x, index = Bank(), torch.randn(4, 3), torch.tensor([3, 0, 4, 1])
    other = Bank().to(device)
    other.load_state_dict(bank.state_dict())
    compiled = torch.compile(other, backend="jaten")
    for _ in range(3):
        bank(x, index).square().sum().backward()
        compiled(x.to(device), index.to(device)).square().sum().backward()
    for (name, p), q in zip(bank.named_parameters(), other.parameters(), strict=True):
        assert q.grad is not None
        torch.testing.assert_close(q.grad.cpu(), p.grad, msg=lambda m, name=name: f"{name}: {m}")
    torch.testing.assert_close(other.rows.cpu(), bank.rows)
