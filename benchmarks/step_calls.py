"""The parts of a call of a compiled step: `python -m benchmarks.step_calls [--case linear] [--threads 1]`.

For each case a Markdown row, in microseconds and as medians. A step is a pass forward and backward and AdamW, with
tensors of the device `jax`:

- step: the whole of a call, until its result is there;
- before: what jaten does until it calls the executable: it compares everything that the step reaches with what was
  there when it was compiled, and collects the arrays;
- executable: JAX's call of XLA's program;
- after: arrays become the tensors' own, the results are made, and the call waits for the program;
- JAX: the same step written by hand, under `jax.jit`, by turns with jaten's.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import torch

from jaten_ops.xla import executables

from .contenders import CONTENDERS, STEP
from .models import CASES
from .models.case import Case
from .table import markdown
from .threads import pin_threads
from .timing import by_turns, ratio

COLUMNS = ("case", "step", "before", "executable", "after", "JAX", f"{STEP} / JAX")
CALLS = 2000


class TimedExecutable:
    """An executable that takes note of when it was called last, and when it returned."""

    def __init__(self, run: Any) -> None:
        self._run, self.began, self.ended = run, 0.0, 0.0

    def __call__(self, *operands: Any) -> Any:
        self.began = time.perf_counter()
        results = self._run(*operands)
        self.ended = time.perf_counter()
        return results


def parts_of(case: Case, calls: int = CALLS) -> list[float]:
    """Seconds of a step and of its parts, as in the columns of the table."""
    made: list[TimedExecutable] = []
    compiled = executables.compiled

    def timed(*args: Any) -> Any:
        run, *rest = compiled(*args)
        made.append(TimedExecutable(run))
        return made[-1], *rest

    executables.compiled = timed
    try:
        step = CONTENDERS[STEP](case, "training", torch.float32)
        for _ in range(max(3, calls // 10)):
            step()
    finally:
        executables.compiled = compiled
    rows = []
    for _ in range(calls):
        start = time.perf_counter()
        step()
        end = time.perf_counter()
        used = max(made, key=lambda one: one.began)
        rows.append((end - start, used.began - start, used.ended - used.began, end - used.ended))
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def row(case: Case) -> list[str]:
    """A row of the table."""
    parts = parts_of(case)
    timings = by_turns({n: CONTENDERS[n](case, "training", torch.float32) for n in (STEP, "JAX")}, 30, 2.0)
    texts = [f"{seconds * 1e6:.0f}" for seconds in (*parts, timings["JAX"].median)]
    return [case.name, *texts, str(ratio(timings[STEP], timings["JAX"]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=f"only: {', '.join(CASES)}")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch and for XLA alike")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    pin_threads(options.threads)
    print(markdown(COLUMNS), markdown(["---"] * len(COLUMNS)), sep="\n", flush=True)
    for case in [c for n, c in CASES.items() if (n in options.case if options.case else c.overhead)]:
        if "training" in case.jobs:
            print(markdown(row(case)), flush=True)


if __name__ == "__main__":
    main()
