"""A process with eight CPU devices, which runs rows of tables for tests: JAX must know the number when it starts."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DEVICES = 8
# Eight devices on two cores wait for each other; XLA ends the process when one has waited for 40 seconds.
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
_ROOT = Path(__file__).parents[2]


class Died(Exception):
    """The process ended while it ran a row; the message is the last of its output."""


class MeshProcess:
    """One process, which answers one request after the other."""

    def __init__(self) -> None:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES} {PATIENT}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.mesh_rows"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
            env=os.environ | {"XLA_FLAGS": flags.strip(), "OMP_NUM_THREADS": "1"},
            text=True,
        )
        atexit.register(self._process.kill)

    def ask(self, request: list[str]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise Died(f"{request}: {self._errors.read().decode(errors='replace')[-3000:]}")
        return json.loads(line)


@functools.cache
def _process() -> MeshProcess:
    return MeshProcess()


def found(table: str, *row: str) -> Any:
    """The result of a row of a table of `tests/programs/mesh_rows.py`, run over eight devices.

    Raises:
        AssertionError: the row raised; the message is its traceback.
        Died: the process is gone; the next call starts another.
    """
    try:
        answer = _process().ask([table, *row])
    except (Died, BrokenPipeError):
        _process.cache_clear()
        raise
    assert "error" not in answer, answer["error"]
    return answer["result"]
