"""The tables of rows that run over eight devices; as a script, the process that runs them, for `mesh_process`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import collectives

from ..drawn import over_mesh
from ..harness.asked_process import serve
from . import (
    mesh_checkpoints,
    mesh_convolutions,
    mesh_estimates,
    mesh_exported,
    mesh_host,
    mesh_layers,
    mesh_loops,
    mesh_models,
    mesh_modules,
    mesh_moves,
    mesh_operators,
    mesh_partitioned,
    mesh_parts,
    mesh_placements,
    mesh_plans,
    mesh_products,
    mesh_sequence,
    mesh_shard_map,
    mesh_tensors,
)

TABLES: dict[str, Callable[..., Any]] = {
    "checkpoints": mesh_checkpoints.outcome,
    "collectives": collectives.measured,
    "convolutions": mesh_convolutions.compared,
    "convolutions, in_shardings": mesh_convolutions.in_shardings,
    "drawn": over_mesh.differences,
    "estimates": mesh_estimates.compared,
    "exported": mesh_exported.saved,
    "not exported": mesh_exported.refused,
    "exported, tied": mesh_exported.tied,
    "host": mesh_host.compared,
    "training": mesh_models.training,
    "layers": mesh_layers.gathered,
    "loops": mesh_loops.PROGRAMS.run,
    "loops trained": mesh_loops.trained,
    "shard_map": mesh_shard_map.PROGRAMS.run,
    "moves": mesh_moves.moved,
    "modules": mesh_modules.PROGRAMS.run,
    "operators": mesh_operators.failures,
    "partitioned": mesh_partitioned.moved,
    "parts": mesh_parts.PROGRAMS.run,
    "placements": mesh_placements.placed,
    "plans": mesh_plans.PROGRAMS.run,
    "products": mesh_products.compared,
    "attention": mesh_sequence.attention,
    "sequence": mesh_sequence.PROGRAMS.run,
    "tensors": mesh_tensors.PROGRAMS.run,
}


def run(table: str, *row: str) -> Any:
    return TABLES[table](*row)


if __name__ == "__main__":
    serve(run)
