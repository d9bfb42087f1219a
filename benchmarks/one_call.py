"""The process that `python -m benchmarks.first_call` starts: one contender's first calls, as a line of JSON.

python -m benchmarks.one_call CONTENDER CASE JOB DTYPE THREADS
"""

# the clock starts before most imports, which are timed: those that every contender has in common are left out
# ruff: noqa: E402
import gc
import json
import sys
import time
from pathlib import Path

_IMPORTS = {
    "eager": ("torch",),
    "Inductor": ("torch", "torch._dynamo"),
    "jaten": ("torch", "torch._dynamo", "jaten_ops"),
    "jaten on jax": ("torch", "torch._dynamo", "jaten_ops"),
    "jaten step": ("torch", "jaten_ops"),
    "JAX": ("jax", "jax.numpy"),
}

_start = time.perf_counter()
for _module in _IMPORTS[sys.argv[1]]:
    __import__(_module)
_imported = time.perf_counter() - _start

import torch

from .contenders import CONTENDERS
from .measure import settings
from .models import CASES
from .threads import pin_threads

CALLS = 3
STATUS = Path("/proc/self/status")


def main(name: str, case_name: str, job: str, dtype: str, threads: str) -> None:
    pin_threads(int(threads))
    case = CASES[case_name]
    before = _mebibytes("VmRSS")
    with settings(case):
        call = CONTENDERS[name](case, job, getattr(torch, dtype))
        gc.collect()
        _forget_peak()  # JAX's weights were torch's first
        start = time.perf_counter()
        call()
        first = time.perf_counter() - start
        for _ in range(CALLS - 1):
            call()
    print(json.dumps({"import": _imported, "first call": first, "peak": _mebibytes("VmHWM") - before}))


def _mebibytes(name: str) -> float:
    """A size that Linux tells of the process: VmRSS, the memory it has now, or VmHWM, the most that it had.

    `getrusage` will not do: there a process starts with the peak of the one that it was forked from.
    """
    if not STATUS.exists():
        return float("nan")
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def _forget_peak() -> None:
    if STATUS.exists():
        STATUS.with_name("clear_refs").write_text("5")


if __name__ == "__main__":
    main(*sys.argv[1:])
