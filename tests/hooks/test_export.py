"""`torch.export` with tensors of the device: modules that are exported, decomposed, saved and loaded."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import jaten_ops  # noqa: F401  # the device

from .test_torchscript import made


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["convolutions", "attention", "recurrent"])
@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs(name: str, strict: bool) -> None:
    model, x = made(name)
    model.eval()
    expected = model(x)
    x, model = x.to("jax"), model.to("jax")
    program = torch.export.export(model, (x,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    decomposed = program.run_decompositions()
    for other in (program, torch.export.load(file), decomposed, decomposed.run_decompositions()):
        result = other.module()(x)
        assert result.device.type == "jax"
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


NAMED = torch.export.Dim("batch", min=2, max=64)
DIMS = {"auto": torch.export.Dim.AUTO, "dynamic": torch.export.Dim.DYNAMIC, "named": NAMED, "derived": 2 * NAMED}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dim", DIMS.values(), ids=DIMS)
@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_of_any_batch(dim: Any, strict: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.GELU())
    x = torch.randn(10, 4)
    expected = model(x)
    model.to("jax")
    sizes = ({0: dim},) if strict else {"input": {0: dim}}
    program = torch.export.export(model, (torch.randn(6, 4, device="jax"),), dynamic_shapes=sizes, strict=strict)
    torch.testing.assert_close(program.module()(x.to("jax")).cpu(), expected, rtol=1e-4, atol=1e-5)


class Reshaped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 4)


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_of_one_batch_is_not_exported_for_any(strict: bool) -> None:
    with pytest.raises(torch._dynamo.exc.UserError, match="specialized it to be a constant"):
        x = torch.ones(3, 4, device="jax")
        torch.export.export(Reshaped(), (x,), dynamic_shapes=({0: NAMED},), strict=strict)


class Selected(nn.Module):
    """Sizes that depend on values."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = x[x > 0]
        at = torch.nonzero(x)
        return kept * 2, kept.new_ones(kept.shape[0]), at[:, 0], torch.unique(x)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("decomposed", [False, True])
def test_sizes_that_depend_on_values_are_asked_of_tensors(decomposed: bool, strict: bool) -> None:
    x = torch.tensor([[1.0, -1.0, 0.0], [2.0, 1.0, -3.0]])
    program = torch.export.export(Selected(), (x.to("jax"),), strict=strict)
    if decomposed:
        program = program.run_decompositions()
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for given in (x, -x, torch.ones(2, 3)):
        for loaded in (program, torch.export.load(file)):
            for got, expected in zip(loaded.module()(given.to("jax")), Selected()(given), strict=True):
                torch.testing.assert_close(got.cpu(), expected)
            file.seek(0)


class Counting(nn.Module):
    """A buffer that is written, and results of sizes of which one is the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.count += x.sum(0)
        places = torch.arange(x.shape[0], device=x.device)
        return self.layers(x), x.reshape(-1), places[:, None] + x * self.count


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("table", [None, {}], ids=["core", "all kept"])
def test_programs_of_any_batch_are_decomposed(strict: bool, table: Any) -> None:
    model = Counting()
    on_device = copy.deepcopy(model).to("jax")
    given = torch.randn(5, 4)
    sizes = ({0: torch.export.Dim("rows", min=2, max=64)},)
    exported = torch.export.export(on_device, (given.to("jax"),), dynamic_shapes=sizes, strict=strict)
    program = exported.run_decompositions(table).module()
    for n in (3, 5, 9):
        x = torch.randn(n, 4)
        for got, expected in zip(program(x.to("jax")), model(x), strict=True):
            torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
