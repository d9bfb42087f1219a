"""The collectives of a training step over a mesh: jaten's beside those of plain JAX with the same shardings.

python -m benchmarks.collectives    # writes the table of docs/many_devices.md
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

import jaten_ops
from jaten_ops import distributed
from jaten_ops.distributed.costs import KINDS, Traffic, traffic_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "many_devices.md"
WIDTH, BATCH, RATE = 256, 64, 0.1
STYLES = {"*.0": "colwise", "*.2": "rowwise"}


def _model() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(2)]
    return nn.Sequential(*blocks)


def _tensor(model: nn.Module, mesh: Mesh) -> nn.Module:
    return distributed.parallelize_module(model, mesh, STYLES)


# axes of the mesh, how the model is placed, whether plain JAX is told to gather weights at their use
PLANS: dict[str, tuple[dict[str, int], Callable[[nn.Module, Mesh], nn.Module], bool]] = {
    "data": ({"data": 8}, lambda model, mesh: distributed.parallelize_module(model, mesh, {}, axis="data"), False),
    "FSDP": ({"data": 8}, distributed.fully_shard, True),
    "tensor": ({"model": 8}, _tensor, False),
    "data x tensor": ({"data": 2, "model": 4}, _tensor, False),
    "FSDP x tensor": ({"data": 2, "model": 4}, lambda m, mesh: distributed.fully_shard(_tensor(m, mesh), mesh), True),
}


def of_jaten(model: nn.Module, x: torch.Tensor) -> dict[str, Traffic]:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    compiled = jaten_ops.compile_step(step)
    compiled(x)
    return distributed.collectives(compiled, x)


def of_jax(model: nn.Module, x: torch.Tensor, mesh: Mesh, gathers: bool) -> dict[str, Traffic]:
    """The same step, written by hand."""
    weights = jaten_ops.to_jax({name: p.detach() for name, p in model.named_parameters()})

    def used(weight: jax.Array, had: jax.Array) -> jax.Array:
        spec = PartitionSpec(*(None if axis == "data" else axis for axis in map(_one_axis, had.sharding.spec)))
        return jax.lax.with_sharding_constraint(weight, NamedSharding(mesh, spec)) if gathers else weight

    def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        given = {name: used(weight, had[name]) for name, weight in weights.items()}
        for block in ("0", "1"):
            x = jax.nn.relu(x @ given[f"{block}.0.weight"].T + given[f"{block}.0.bias"])
            x = x @ given[f"{block}.2.weight"].T + given[f"{block}.2.bias"]
        return jnp.mean(x * x)

    def step(weights: dict[str, jax.Array], x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        placed = {n: jax.lax.with_sharding_constraint(g, had[n].sharding) for n, g in gradients.items()}
        return value, {name: weight - RATE * placed[name] for name, weight in weights.items()}

    had = weights
    shardings = None, {name: weight.sharding for name, weight in weights.items()}
    lowered = jax.jit(step, out_shardings=shardings, donate_argnums=0).lower(weights, *jaten_ops.to_jax([x]))
    return traffic_of(lowered.compile())


def _one_axis(entry: Any) -> Any:
    """An entry without the axis of the data, if it has others."""
    return tuple(a for a in entry if a != "data") if isinstance(entry, tuple) else entry


def measured(name: str) -> tuple[dict[str, Traffic], dict[str, Traffic]]:
    """The collectives of a plan's step: jaten's, and plain JAX's."""
    axes, place, gathers = PLANS[name]
    mesh = distributed.make_mesh(**axes)
    model, batch = place(_model(), mesh), torch.randn(BATCH, WIDTH)
    x = distributed.distribute_batch(batch, mesh) if "data" in axes else distributed.distribute_tensor(batch, mesh)
    by_hand = of_jax(model, x, mesh, gathers)
    return of_jaten(model, x), by_hand


def _cell(traffic: dict[str, Traffic]) -> str:
    found = {kind: traffic[kind] for kind in KINDS if traffic[kind].number}
    return "; ".join(f"{t.number} {kind}, {t.bytes / 1024:,.0f} KiB" for kind, t in found.items()) or "none"


def main() -> None:
    rows = ["| plan | mesh | jaten | plain JAX |", "|---|---|---|---|"]
    for name, (axes, _, _) in PLANS.items():
        sizes = ", ".join(f"{axis} {size}" for axis, size in axes.items())
        rows.append(f"| {name} | {sizes} | {' | '.join(map(_cell, measured(name)))} |")
    table = "\n".join(rows)
    print(table)
    page = PAGE.read_text(encoding="utf-8")
    page = re.sub(r"<!-- collectives -->\n(\|.*\n)*", lambda _: f"<!-- collectives -->\n{table}\n", page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
