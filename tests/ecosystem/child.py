"""The process of one run: `python -m tests.ecosystem.child NAME WAY FILE` writes what the program has recorded."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import warnings
from importlib.metadata import version
from pathlib import Path

from .missing_operators import define_missing_operators
from .run import Run
from .table import ROWS


def main(name: str, way: str, file: str) -> None:
    warnings.simplefilter("ignore")
    row = ROWS[name]
    found: dict = {"version": version(row.requirement)}
    try:
        define_missing_operators()
        program = importlib.import_module(f"{__package__}.programs.{name}")
        if way in ("jaten", "device"):
            importlib.import_module("jaten_ops")
        run = Run(way)
        program.main(run)
        found |= run.result()
    except Exception as error:
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {error}"
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
