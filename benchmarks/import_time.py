"""The time that `import jaten_ops` adds to `import torch, jax`: `python -m benchmarks.import_time [runs]`.

The two are started by turns in fresh interpreters, and the medians of the seconds that each spends importing compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

_PROGRAM = "import time; start = time.perf_counter(); import {modules}; print(time.perf_counter() - start)"
_CONTENDERS = ("torch, jax", "torch, jax, jaten_ops")


def seconds(modules: str) -> float:
    """The seconds that a fresh interpreter takes for `import <modules>`."""
    command = [sys.executable, "-c", _PROGRAM.format(modules=modules)]
    # pip compiles what it installs; a checkout has byte code after the first import, unless that is forbidden
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main(runs: int = 7) -> None:
    for modules in _CONTENDERS:
        seconds(modules)  # once without counting: byte code and the disk's cache
    times: dict[str, list[float]] = {modules: [] for modules in _CONTENDERS}
    for _ in range(runs):
        for modules in _CONTENDERS:
            times[modules].append(seconds(modules))
    for modules, taken in times.items():
        print(f"import {modules}: {statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f}, {runs} runs)")
    without, with_jaten = (statistics.median(times[modules]) for modules in _CONTENDERS)
    print(f"jaten_ops adds {with_jaten - without:.2f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
