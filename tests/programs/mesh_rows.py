"""The tables of rows that run over eight devices; as a script, the process that runs them, for `mesh_process`."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import collectives

from . import (
    mesh_checkpoints,
    mesh_estimates,
    mesh_layers,
    mesh_models,
    mesh_modules,
    mesh_operators,
    mesh_parts,
    mesh_plans,
    mesh_sequence,
    mesh_tensors,
)

TABLES: dict[str, Callable[..., Any]] = {
    "checkpoints": mesh_checkpoints.outcome,
    "collectives": collectives.measured,
    "estimates": mesh_estimates.compared,
    "training": mesh_models.training,
    "layers": mesh_layers.gathered,
    "modules": mesh_modules.PROGRAMS.run,
    "operators": mesh_operators.failures,
    "parts": mesh_parts.PROGRAMS.run,
    "plans": mesh_plans.PROGRAMS.run,
    "attention": mesh_sequence.attention,
    "sequence": mesh_sequence.PROGRAMS.run,
    "tensors": mesh_tensors.PROGRAMS.run,
}


def answer(request: list[str]) -> dict[str, Any]:
    table, *row = request
    try:
        return {"result": TABLES[table](*row)}
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not mix with the answers
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
