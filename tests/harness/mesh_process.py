"""A process with eight CPU devices, which runs rows of tables for tests: JAX must know the number when it starts."""

from __future__ import annotations

import functools
from typing import Any

from . import virtual_devices
from .asked_process import AskedProcess, Died

DEVICES = 8
_SECONDS = 600.0


@functools.cache
def _process() -> AskedProcess:
    return AskedProcess("tests.programs.mesh_rows", virtual_devices.environment(DEVICES))


def found(table: str, *row: str) -> Any:
    """The result of a row of a table of `tests/programs/mesh_rows.py`, run over eight devices.

    Raises:
        AssertionError: the row raised; the message is its traceback.
        Died: the process is gone; the next call starts another.
    """
    try:
        _process().send([table, *row])
        answer = _process().answer(_SECONDS)
    except (Died, BrokenPipeError):
        _process.cache_clear()
        raise
    assert "error" not in answer, answer["error"]
    return answer["result"]
