"""torchax, measured in a process of its own: it takes the same place in torch as jaten, and another version of torch.

`TORCHAX_PYTHON=PATH python -m benchmarks` has it as a contender, where PATH is a Python with torch 2.11, torchax and
optax (torchax 0.0.13, the newest, cannot be imported with torch 2.13). That Python runs `torchax_worker.py`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .models import Case

VARIABLE = "TORCHAX_PYTHON"
ROOT = Path(__file__).resolve().parents[1]
VALUE, SECONDS = "value", "seconds"


class Elsewhere:
    """A job in the other process, which keeps the time itself: a message takes longer than a small model."""

    def __init__(self, case: Case, job: str, dtype: torch.dtype) -> None:
        options = ["--case", case.name, "--job", job, "--dtype", str(dtype).removeprefix("torch.")]
        command = [os.environ[VARIABLE], "-m", "benchmarks.torchax_worker", *options]
        command += ["--threads", str(torch.get_num_threads())]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self) -> np.ndarray:
        return self._ask((VALUE, 1))

    def seconds(self, calls: int) -> float:
        """The mean time of one of `calls` calls."""
        return self._ask((SECONDS, calls))

    def _ask(self, question: tuple[str, int]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(question, self._process.stdin)
            self._process.stdin.flush()
            answer = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            raise RuntimeError(f"torchax's process ended with {self._process.wait()}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def version() -> str | None:
    """The versions that the other Python has, or None without one."""
    if VARIABLE not in os.environ:
        return None
    program = "from importlib.metadata import version; print(*map(version, ('torchax', 'torch', 'jax')))"
    done = subprocess.run([os.environ[VARIABLE], "-c", program], capture_output=True, text=True, check=True)
    return "{} (torch {}, jax {})".format(*done.stdout.split())
