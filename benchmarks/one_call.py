"""The process that `python -m benchmarks.first_call` starts: one contender's first calls, as a line of JSON.

python -m benchmarks.one_call CONTENDER CASE JOB DTYPE THREADS
"""

# the imports are timed, those that every contender has in common left out
# ruff: noqa: E402
import json
import resource
import sys
import time

_IMPORTS = {
    "eager": ("torch",),
    "Inductor": ("torch", "torch._dynamo"),
    "jaten": ("torch", "torch._dynamo", "jaten_ops"),
    "jaten on jax": ("torch", "torch._dynamo", "jaten_ops"),
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
KIB = 1 if sys.platform == "linux" else 1024  # units of ru_maxrss


def main(name: str, case_name: str, job: str, dtype: str, threads: str) -> None:
    pin_threads(int(threads))
    case = CASES[case_name]
    before = _peak()
    with settings(case):
        call = CONTENDERS[name](case, job, getattr(torch, dtype))
        start = time.perf_counter()
        call()
        first = time.perf_counter() - start
        for _ in range(CALLS - 1):
            call()
    print(json.dumps({"import": _imported, "first call": first, "peak": _peak() - before}))


def _peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
