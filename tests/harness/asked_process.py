"""A process that runs rows of tables for tests, one after the other; requests and answers are lines of JSON."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).parents[2]


class Died(Exception):
    """The process ended, or did not answer in time, while it ran a row; the message is the last of its output."""


class AskedProcess:
    """The process, started from a module that calls `serve`.

    Args:
        module: its name.
        environment: variables that it has besides those of this process.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            text=True,
        )
        atexit.register(self.end)

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.wait()

    def send(self, request: list[str]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def answer(self, seconds: float) -> Any:
        """The answer to the row that was sent: what it returned, as `result`, or its traceback, as `error`.

        Raises:
            Died: there is no answer.
        """
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.end()
            self._errors.seek(0)
            raise Died(self._errors.read().decode(errors="replace")[-3000:])
        return json.loads(line)


def serve(run: Callable[..., Any]) -> None:
    """Answers each request, which is a list of the function's arguments, until there are no more."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not mix with the answers
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        for line in sys.stdin:
            try:
                answer = {"result": run(*json.loads(line))}
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)
