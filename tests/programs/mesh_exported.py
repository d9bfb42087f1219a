"""Programs over eight devices that are exported, and called here as they are loaded elsewhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jax.sharding import PartitionSpec
from torch import nn

import jaten_ops
from jaten_ops import distributed

BATCH = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.BatchNorm1d(32), nn.Linear(32, 16))


def _parallel(model: nn.Module) -> tuple[nn.Module, torch.Tensor]:
    mesh = distributed.make_mesh(data=2, model=4)
    placed = distributed.parallelize_module(model, mesh, {"0": "colwise", "3": "rowwise"})
    return placed, distributed.distribute_batch(BATCH, mesh)


def _fully_sharded(model: nn.Module) -> tuple[nn.Module, torch.Tensor]:
    mesh = distributed.make_mesh(data=8)
    return distributed.fully_shard(model, mesh), distributed.distribute_batch(BATCH, mesh)


class _Tied(nn.Module):
    """A model whose last weight is its first, as of language models."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.tanh(self.first(x)))
        return result


def tied() -> list[str]:
    """The names of the state of a model with a tied weight, which is there once."""
    mesh = distributed.make_mesh(data=8)
    model = distributed.fully_shard(_Tied().to("jax"), mesh)
    x = distributed.distribute_batch(BATCH, mesh)
    exported = jaten_ops.export(model, (x,))
    torch.testing.assert_close(exported.call(x).cpu(), model(x).detach().cpu())
    return list(exported.signature["state"])


def _of_parameters_only(model: nn.Module) -> tuple[nn.Module, torch.Tensor]:
    mesh = distributed.make_mesh(model=8)
    return distributed.parallelize_module(model, mesh, {"0.weight": PartitionSpec("model")}), BATCH


PLANS: dict[str, Callable[[nn.Module], tuple[nn.Module, torch.Tensor]]] = {
    "tensor parallel": _parallel, "fully sharded": _fully_sharded, "a parameter": _of_parameters_only,
}  # fmt: skip


def _step(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def saved(plan: str, folder: str) -> list[Any]:
    """The results of three calls of a program in training: its buffers and, in a step, its parameters are updated.

    What is exported gives the same as the program itself, which is checked, and is saved with its calls.
    """
    name, _, kind = plan.partition(", ")
    plain = _layers()
    model, x = PLANS[name](copy.deepcopy(plain).to("jax"))
    if kind == "a step":
        compiled, plain_call = jaten_ops.compile_step(_step(model)), _step(plain)
        torch.testing.assert_close(compiled(x).cpu(), plain_call(BATCH))
        exported = jaten_ops.export(compiled, (x,), training=True)
    else:
        exported, plain_call = jaten_ops.export(model, (x,)), plain
    exported.save(folder)
    calls = [((BATCH.numpy(),), {})] * 3
    (Path(folder) / "calls.pickle").write_bytes(pickle.dumps(calls))
    expected = [plain_call(BATCH).detach() for _ in calls]
    for one in expected:
        torch.testing.assert_close(exported.call(x).cpu(), one)
    return [one.tolist() for one in expected]


def refused(what: str) -> str:
    """The text of the error for a program over a mesh that cannot be exported."""
    model, x = _parallel(_layers())
    options: dict[str, Any] = {}
    if what == "open sizes":
        options["dynamic_shapes"] = ({0: torch.export.Dim("batch", max=64)},)
    elif what == "two meshes":
        x = distributed.distribute_batch(BATCH, distributed.make_mesh(data=8))
    try:
        jaten_ops.export(model, (x,), **options)
    except jaten_ops.errors.UnsupportedInputError as error:
        return str(error)
    return ""
