"""Views of inputs that are saved for the backward pass: the inputs are saved, uncopied, and writes to them noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import jaten_ops  # noqa: F401  # the device jax
from tests.harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

# programs of x and w, of which the compiled forward pass saves w for the backward pass
PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "transposed": lambda x, w: x @ w.mT,
    "permuted": lambda x, w: torch.einsum("bij,kj->bik", x.expand(2, 4, 4), w.permute(1, 0)),
    "reshaped": lambda x, w: x.view(-1) * w.view(-1).sin(),
    "part": lambda x, w: x[:2, :3] @ w[1:, :3].mT * w[:2, 1:],
    "expanded": lambda x, w: (x.sum() * w.expand(3, 4, 4)).cos(),
    "twice": lambda x, w: (x @ w.mT).sin() @ w.t(),
    "by strides": lambda x, w: x[:2, :3].sin() @ w.as_strided((3, 2), (1, 4)),
    "three": lambda x, w: torch.bmm(x.expand(2, 4, 4).transpose(1, 2), w.expand(2, 4, 4)),
}


def _given(device: str, size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.rand(2, size, size, dtype=torch.float64).to(device)
    return x.clone().requires_grad_(), w.clone().requires_grad_()


@pytest.mark.parametrize(("name", "device", "dynamic"), crossed(PROGRAMS, ("cpu", "jax"), (False, True)))
def test_gradients(name: str, device: str, dynamic: bool) -> None:
    program = PROGRAMS[name]
    x, w = _given(device, 4)
    expected = torch.autograd.grad(program(x, w).square().sum(), (x, w))
    compiled = torch.compile(program, backend="jaten", dynamic=dynamic)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, w).square().sum(), (x, w)), expected)


@pytest.mark.parametrize("name", ["transposed", "permuted", "twice", "three"])
def test_writes_are_noticed(name: str) -> None:
    for run in (PROGRAMS[name], torch.compile(PROGRAMS[name], backend="jaten")):
        x, w = _given("cpu", 4)
        result = run(x, w)
        with torch.no_grad():
            w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.square().sum().backward()


def _cut(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sum() + x[w > 0.5].sum() * w.mT[0].exp().sum()


@pytest.mark.parametrize("program", [torch.mul, PROGRAMS["transposed"], PROGRAMS["twice"], _cut], ids=range(4))
def test_writes_on_the_device(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Compiled, the gradients are those of the values from before; eager, autograd refuses."""
    x, w = _given("jax", 4)
    expected = torch.autograd.grad(program(x, w).sum(), (x, w))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        total = torch.compile(program, backend="jaten")(x, w).sum()
    with torch.no_grad():
        w.mul_(2)
    torch.testing.assert_close(torch.autograd.grad(total, (x, w)), expected)


@pytest.mark.parametrize("size", [4, 128])
def test_nothing_is_copied(size: int) -> None:
    x, w = _given("cpu", size)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.data_ptr())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.compile(lambda x, w: x.mT @ w.mT, backend="jaten")(x, w)
    assert sorted(saved) == sorted([x.data_ptr(), w.data_ptr()])
