"""TorchScript with tensors of the device: modules that are scripted, traced, moved, saved and loaded."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jaten_ops  # noqa: F401  # the device

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Loop(nn.Module):
    """A loop, a list and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [x]
        for _ in range(3):
            kept.append(torch.tanh(self.linear(kept[-1])))
        self.calls += 1
        return torch.stack(kept).sum(0)


class Slices(nn.Module):
    """Sizes that are computed with, and a write to a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(x.size(0), -1, 2).clone()
        y[:, 0].add_(1)
        return y.transpose(1, 2)[:, :, : x.shape[1] // 2 - 1]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "loop": (Loop, (5, 4)),
    "slices": (Slices, (5, 8)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2), nn.MaxPool2d(2)
        ),
        (2, 2, 9, 9),
    ),
    "convolution of sequences": (lambda: nn.Conv1d(2, 4, 3, padding="same", groups=2), (3, 2, 7)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "recurrent": (Recurrent, (2, 5, 4)),
}


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    make, shape = MODULES[name]
    return make(), torch.randn(shape)


def agree(model: Any, reference: nn.Module, x: torch.Tensor) -> None:
    """Results and gradients on the device, and the plain module's on the CPU."""
    moved, plain = x.to("jax").requires_grad_(), x.clone().requires_grad_()
    result, expected = model(moved), reference(plain)
    assert result.device.type == "jax"
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)
    result.square().sum().backward()
    expected.square().sum().backward()
    of_parameters = [(p.grad, q.grad) for p, q in zip(model.parameters(), reference.parameters(), strict=True)]
    for got, want in ((moved.grad, plain.grad), *of_parameters):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in MODULES if name != "slices"])
def test_a_scripted_module_moves(name: str) -> None:
    model, x = made(name)
    reference = copy.deepcopy(model)
    scripted = torch.jit.script(model)
    weight = next(iter(scripted.parameters()))
    agree(scripted.to("jax"), reference, x)
    assert next(iter(scripted.parameters())) is weight and weight.device.type == "jax"
    scripted.zero_grad()
    assert torch.equal(scripted.cpu()(x), torch.jit.script(copy.deepcopy(model))(x))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_traced_on_the_device(name: str) -> None:
    model, x = made(name)
    reference = copy.deepcopy(model)
    model.to("jax")
    traced = torch.jit.trace(model, torch.randn_like(x).to("jax"), check_trace=False)
    if isinstance(model, Loop):
        model.calls.zero_()  # the program that is recorded is run
    agree(traced, reference, x)


@pytest.mark.parametrize("name", ["slices", "convolutions"])
def test_a_traced_module_moves_and_is_saved(name: str, tmp_path: Any) -> None:
    model, x = made(name)
    traced = torch.jit.trace(model.eval(), x)
    expected = model(x)
    torch.testing.assert_close(traced.to("jax")(x.to("jax")).cpu(), expected, rtol=1e-4, atol=1e-5)
    traced.save(str(tmp_path / "module.pt"))
    torch.testing.assert_close(torch.jit.load(tmp_path / "module.pt")(x), expected, rtol=1e-4, atol=1e-5)


def test_constants_on_the_device_cannot_be_saved(tmp_path: Any) -> None:
    frozen = torch.jit.freeze(torch.jit.script(nn.Linear(3, 2).eval().to("jax")))
    frozen(torch.ones(1, 3, device="jax"))
    with pytest.raises(RuntimeError, match=r"constants on the device jax.*freeze it on the CPU"):
        frozen.save(str(tmp_path / "module.pt"))


@pytest.mark.parametrize("name", ["loop", "convolutions"])
@pytest.mark.parametrize("where", ["file", "buffer"])
def test_saves_from_the_device_and_loads_onto_it(name: str, where: str, tmp_path: Any) -> None:
    model, x = made(name)
    scripted = torch.jit.script(copy.deepcopy(model).to("jax"))
    scripted.eval()
    expected = scripted(x.to("jax")).cpu()
    file: Any = str(tmp_path / "module.pt") if where == "file" else io.BytesIO()
    torch.jit.save(scripted, file)
    assert next(iter(scripted.parameters())).device.type == "jax"
    for location in (None, "cpu", "jax", torch.device("jax:0")):
        if where == "buffer":
            file.seek(0)
        loaded = torch.jit.load(file, map_location=location)
        device = "cpu" if location is None else torch.device(location).type
        assert {p.device.type for p in loaded.parameters()} == {device}
        assert all(p.requires_grad and p.is_leaf for p in loaded.parameters())
        torch.testing.assert_close(loaded(x.to(device)).cpu(), expected, rtol=1e-4, atol=1e-5)


class OfOperators(nn.Module):
    """Operators of jaten by name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.jaten.relu(torch.ops.jaten.add(x, x)) + torch.ops.jaten.matmul(x, x)


SAVE = """
import sys, torch, jaten_ops
class Module(torch.nn.Module):
    def forward(self, x):
        return torch.ops.jaten.relu(torch.ops.jaten.add(x, x)) + torch.ops.jaten.matmul(x, x)
for overload in (torch.ops.jaten.relu, torch.ops.jaten.add, torch.ops.jaten.matmul):
    pass
torch.jit.script(Module()).save(sys.argv[1])
"""
LOOK_UP = """
import io, sys, torch, jaten_ops
x = torch.tensor([[-1.0, 2.0], [0.0, 1.0]])
expected = torch.relu(x + x) + x @ x
assert torch.equal(torch.jit.load(sys.argv[1])(x), expected)
assert str(torch._C._get_schema("jaten::sigmoid", "")).startswith("jaten::sigmoid(Tensor self)")
assert torch._C._dispatch_find_schema_or_throw("jaten::cos", "") is not None
for look_up in (torch._C._get_schema, torch._C._dispatch_find_schema_or_throw):
    for name in ("jaten::no_such", "other::no_such"):
        try:
            look_up(name, "")
        except RuntimeError:
            continue
        raise AssertionError(name)
print("found")
"""


@pytest.mark.parametrize("saved", ["here", pytest.param("in another", marks=pytest.mark.exhaustive)])
def test_operators_are_found_by_name_in_a_new_process(saved: str, tmp_path: Path) -> None:
    """They are defined when they are named, which C++ does without asking Python."""
    place = str(tmp_path / "module.pt")
    if saved == "here":
        torch.jit.script(OfOperators()).save(place)
    for program in (LOOK_UP,) if saved == "here" else (SAVE, LOOK_UP):
        source = tmp_path / "program.py"  # TorchScript reads it
        source.write_text(program, encoding="utf-8")
        done = subprocess.run([sys.executable, "-W", "ignore", source, place], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "found"


def test_a_file_is_read_anew_for_each_operator() -> None:
    content = io.BytesIO()
    torch.jit.save(torch.jit.script(Loop()), content)
    content.seek(0)
    assert torch.jit.load(content)(torch.ones(2, 4)).shape == (2, 4)
