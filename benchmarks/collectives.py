"""Collectives and memory of a training step over a mesh: jaten's beside those of plain JAX with the same shardings.

python -m benchmarks.collectives    # writes the table of docs/guides/many_devices.md
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

import jaten_ops
from jaten_ops import distributed
from jaten_ops.distributed.costs import KINDS, Traffic, traffic_of

from . import mesh_layers, mesh_mixture, mesh_transformer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "many_devices.md"
WIDTH, BATCH, RATE = 256, 64, 0.1
STYLES = {"*.0": "colwise", "*.2": "rowwise"}
_BY_HEADS = {
    "layers.*.self_attn.in_proj_weight": PartitionSpec("model"),
    "layers.*.self_attn.out_proj.weight": PartitionSpec(None, "model"),
    "layers.*.linear1": "colwise",
    "layers.*.linear2": "rowwise",
}
Weights = dict[str, jax.Array]
Put = Callable[[jax.Array, PartitionSpec], jax.Array]


def _mlp() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(2)]
    return nn.Sequential(*blocks)


def _rows() -> torch.Tensor:
    return torch.randn(BATCH, WIDTH)


def _mlp_by_hand(weights: Weights, x: jax.Array, put: Put) -> jax.Array:
    for block in ("0", "1"):
        x = jax.nn.relu(x @ weights[f"{block}.0.weight"].T + weights[f"{block}.0.bias"])
        x = x @ weights[f"{block}.2.weight"].T + weights[f"{block}.2.bias"]
    return jnp.mean(x * x)


def _tensor(model: nn.Module, mesh: Mesh) -> nn.Module:
    return distributed.parallelize_module(model, mesh, STYLES)


def _sequence(model: nn.Module, mesh: Mesh) -> nn.Module:
    return distributed.parallelize_module(model, mesh, mesh_transformer.PLAN)


def _experts(model: nn.Module, mesh: Mesh) -> nn.Module:
    return distributed.parallelize_module(model, mesh, mesh_mixture.plan("expert"), axis="expert")


def _mean_square(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return result.square().mean()


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        axes: those of the mesh.
        place: partitions the model over the mesh.
        build, batch: make the model, and what it takes.
        loss: of what it gives and what it took.
        by_hand: the loss in JAX.
        batch_axis: the axis over which the batch is partitioned, if the mesh has it.
        gathers: whether plain JAX is told to gather weights at their use.
    """

    axes: dict[str, int]
    place: Callable[[nn.Module, Mesh], nn.Module]
    build: Callable[[], nn.Module] = _mlp
    batch: Callable[[], torch.Tensor] = _rows
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _mean_square
    by_hand: Callable[[Weights, jax.Array, Put], jax.Array] = _mlp_by_hand
    batch_axis: str = "data"
    gathers: bool = False


_LANGUAGE: dict[str, Any] = {
    "place": _sequence,
    "build": mesh_transformer.Transformer,
    "batch": mesh_transformer.some_tokens,
    "loss": mesh_transformer.language_loss,
    "by_hand": mesh_transformer.loss_by_hand,
}


_CHECKPOINTED = {
    "build": functools.partial(mesh_transformer.Transformer, checkpointed=True),
    "by_hand": functools.partial(mesh_transformer.loss_by_hand, checkpointed=True),
}


def _mixture(by: str) -> Row:
    by_hand = functools.partial(mesh_mixture.loss_by_hand, by=by)
    build, batch = functools.partial(mesh_mixture.mixtures, by), mesh_mixture.some_vectors
    return Row({"expert": 8}, _experts, build, batch, by_hand=by_hand, batch_axis="expert")


def _data(model: nn.Module, mesh: Mesh) -> nn.Module:
    return distributed.parallelize_module(model, mesh, {}, axis="data")


_ENCODER: dict[str, Any] = {
    "build": mesh_layers.encoder,
    "batch": mesh_layers.some_sequences,
    "by_hand": mesh_layers.encoder_by_hand,
}
_CONVOLUTIONS: dict[str, Any] = {
    "build": mesh_layers.convolutions,
    "batch": mesh_layers.some_images,
    "by_hand": mesh_layers.convolutions_by_hand,
}

PLANS: dict[str, Row] = {
    "data": Row({"data": 8}, _data),
    "FSDP": Row({"data": 8}, distributed.fully_shard, gathers=True),
    "tensor": Row({"model": 8}, _tensor),
    "data x tensor": Row({"data": 2, "model": 4}, _tensor),
    "FSDP x tensor": Row(
        {"data": 2, "model": 4}, lambda model, mesh: distributed.fully_shard(_tensor(model, mesh), mesh), gathers=True
    ),
    "encoder, data": Row({"data": 8}, _data, **_ENCODER),
    "encoder, FSDP": Row({"data": 8}, distributed.fully_shard, **_ENCODER, gathers=True),
    "encoder, data x tensor": Row(
        {"data": 2, "model": 4},
        lambda model, mesh: distributed.parallelize_module(model, mesh, _BY_HEADS),
        **_ENCODER,
    ),
    "convolutions, data": Row({"data": 8}, _data, **_CONVOLUTIONS),
    "convolutions, FSDP": Row({"data": 8}, distributed.fully_shard, **_CONVOLUTIONS, gathers=True),
    "sequence": Row({"model": 8}, **_LANGUAGE),
    "data x sequence": Row({"data": 2, "model": 4}, **_LANGUAGE),
    "data x sequence, checkpoints": Row({"data": 2, "model": 4}, **_LANGUAGE | _CHECKPOINTED),
    "experts, by a mask": _mixture("mask"),
    "experts, by indices": _mixture("index"),
}


class Cost(NamedTuple):
    """The cost of a program on each device: its collectives, and the bytes of its temporaries."""

    traffic: dict[str, Traffic]
    temporaries: int


def _cost_of(executable: jax.stages.Compiled) -> Cost:
    memory: Any = executable.memory_analysis()
    return Cost(traffic_of(executable), memory.temp_size_in_bytes)


def of_jaten(row: Row, model: nn.Module, x: torch.Tensor) -> Cost:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = row.loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    compiled: Any = jaten_ops.compile_step(step)
    return _cost_of(compiled.executable_for(x))


def of_jax(row: Row, model: nn.Module, x: torch.Tensor, mesh: Mesh) -> Cost:
    """The same step, written by hand."""
    weights = jaten_ops.to_jax({name: p.detach() for name, p in model.named_parameters()})

    def put(value: jax.Array, spec: PartitionSpec) -> jax.Array:
        known = PartitionSpec(*(axis if axis in mesh.axis_names else None for axis in spec))
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, known))

    def used(weight: jax.Array, had: jax.Array) -> jax.Array:
        spec = PartitionSpec(*(None if axis == "data" else axis for axis in map(_one_axis, had.sharding.spec)))
        return put(weight, spec) if row.gathers else weight

    def loss(weights: Weights, x: jax.Array) -> jax.Array:
        return row.by_hand({name: used(weight, had[name]) for name, weight in weights.items()}, x, put)

    def step(weights: Weights, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        placed = {n: jax.lax.with_sharding_constraint(g, had[n].sharding) for n, g in gradients.items()}
        return value, {name: weight - RATE * placed[name] for name, weight in weights.items()}

    had = weights
    shardings = None, {name: weight.sharding for name, weight in weights.items()}
    with jax.enable_x64(True):  # for tokens in int64
        lowered = jax.jit(step, out_shardings=shardings, donate_argnums=0).lower(weights, *jaten_ops.to_jax([x]))
    return _cost_of(lowered.compile())


def _one_axis(entry: Any) -> Any:
    """An entry without the axis of the data, if it has others."""
    return tuple(a for a in entry if a != "data") if isinstance(entry, tuple) else entry


def measured(name: str) -> tuple[Cost, Cost]:
    """The cost of a plan's step: jaten's, and plain JAX's."""
    row = PLANS[name]
    mesh = distributed.make_mesh(**row.axes)
    torch.manual_seed(0)
    model, batch = row.place(row.build(), mesh), row.batch()
    given = (batch, mesh, row.batch_axis) if row.batch_axis in row.axes else None
    x = distributed.distribute_batch(*given) if given else distributed.distribute_tensor(batch, mesh)
    by_hand = of_jax(row, model, x, mesh)
    return of_jaten(row, model, x), by_hand


def _cell(cost: Cost) -> str:
    found = {kind: cost.traffic[kind] for kind in KINDS if cost.traffic[kind].number}
    parts = [f"{t.number} {kind}, {t.bytes / 1024:,.0f} KiB" for kind, t in found.items()]
    return "; ".join([*parts, f"temporaries {cost.temporaries / 1024:,.0f} KiB"])


def main() -> None:
    rows = ["| plan | mesh | jaten | plain JAX |", "|---|---|---|---|"]
    for name, row in PLANS.items():
        sizes = ", ".join(f"{axis} {size}" for axis, size in row.axes.items())
        rows.append(f"| {name} | {sizes} | {' | '.join(map(_cell, measured(name)))} |")
    table = "\n".join(rows)
    print(table)
    page = PAGE.read_text(encoding="utf-8")
    page = re.sub(r"<!-- collectives -->\n(\|.*\n)*", lambda _: f"<!-- collectives -->\n{table}\n", page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
