"""Measures the contenders at one case, in this process: what `python -m benchmarks` starts for each case.

python -m benchmarks.measure --case mlp --json mlp.json
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import sysconfig
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import torch._dynamo

from .contenders import CAPTURE, CONTENDERS, REFERENCE, SUBJECT, Job, takes_part, to_numpy
from .models import Case, case_of, known_name
from .threads import pin_threads
from .timing import by_turns

JOBS = ("inference", "training")
CALLS = 3  # that are compared

# How far a value may be from eager's: an output against its largest number; a first loss; a change of the loss.
TOLERANCES = {torch.float32: (1e-3, 1e-4, 0.05), torch.bfloat16: (0.05, 0.02, 0.5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", required=True, type=known_name, metavar="NAME")
    add_options(parser)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    pin_threads(options.threads)
    case = case_of(options.case)
    results = []
    warm_imports([name for name in CONTENDERS if name not in options.without])
    for job in [j for j in case.jobs if options.job in (None, j)]:
        with settings(case):
            results.append({"case": case.name, "job": job, **measure(case, job, options)})
        torch._dynamo.reset()
        jax.clear_caches()
        gc.collect()
    options.json.write_text(json.dumps(results))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", choices=JOBS, help="only this job")
    parser.add_argument("--without", action="append", default=[], choices=CONTENDERS, help="leave this contender out")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each contender, at most")
    parser.add_argument("--seconds", type=float, default=2.0, help="for a contender's turns, about and at most")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch and for XLA alike")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")


def settings(case: Case) -> contextlib.AbstractContextManager[Any]:
    """Dynamo as the case needs it. All contenders compile the same functions, and each may as often as one alone."""
    limit = torch._dynamo.config.recompile_limit * len(CONTENDERS)
    found: contextlib.AbstractContextManager[Any] = torch._dynamo.config.patch(
        {"recompile_limit": limit, **dict(case.dynamo)}
    )
    return found


def measure(case: Case, job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the first call and of each round for each contender, and what went wrong."""
    dtype = getattr(torch, options.dtype)
    names = [n for n in CONTENDERS if n not in options.without and takes_part(n, case, job)]
    jobs: dict[str, Job] = {}
    values: dict[str, list[np.ndarray]] = {}
    first_calls: dict[str, float] = {}
    errors: dict[str, str] = {}
    for name in names:
        progress(f"{case.name}, {job}: {name} compiles")
        try:
            jobs[name] = CONTENDERS[name](case, job, dtype)
            start = time.perf_counter()
            first = jobs[name]()
            first_calls[name] = time.perf_counter() - start
            values[name] = [to_numpy(case, first), *(to_numpy(case, jobs[name]()) for _ in range(CALLS - 1))]
            if name != CAPTURE and REFERENCE in values:
                check(job, values[name], values[REFERENCE], TOLERANCES[dtype])
        except Exception as error:  # a contender that fails is a result, too
            errors[name] = in_words(error)
            jobs.pop(name, None)
            first_calls.pop(name, None)
    progress(f"{case.name}, {job}: timing")
    timings = by_turns(jobs, options.rounds, options.seconds)
    progress("")
    seconds = {n: {"first call": first_calls[n], "rounds": timings[n].rounds} for n in jobs}
    return {"seconds": seconds, "errors": errors}


def in_words(error: Exception) -> str:
    """An error for a page: without the folders of this machine in which libraries lie."""
    text = f"{type(error).__name__}: {error}".strip()[:2000]
    return text.replace(f"{sysconfig.get_path('purelib')}/", "").replace(f"{Path.cwd()}/", "")


def check(
    job: str, values: list[np.ndarray], expected: list[np.ndarray], tolerances: tuple[float, float, float]
) -> None:
    """Raises AssertionError unless both computed the same: a benchmark of different things says nothing.

    Of a training the first loss, and how it changes by the steps.
    """
    of_output, of_loss, of_change = tolerances
    if job == "inference":
        for value, right in zip(values, expected, strict=True):
            _near(value, right, of_output * float(np.abs(right).max()), "the output")
        return
    first, right = values[0], expected[0]
    _near(first, right, of_loss * float(abs(right)), "the loss")
    for value, later in zip(values[1:], expected[1:], strict=True):
        change = later - right
        allowed = of_change * float(abs(change)) + of_loss * float(abs(right))
        _near(value - first, change, allowed, "the change of the loss")


def _near(value: np.ndarray, right: np.ndarray, tolerance: float, what: str) -> None:
    assert value.shape == right.shape, f"{what} has the shape {value.shape}, eager's {right.shape}"
    assert np.isfinite(right).all(), f"{what} of eager is not finite"
    off = np.abs(value - right).max()
    assert off <= tolerance, f"{what} is off by {off:.3g}, where {tolerance:.3g} is allowed"


def warm_imports(names: list[str]) -> None:
    """Compiles next to nothing: what the first `torch.compile` of a process imports is no case's doing."""
    for name, backend in {SUBJECT: "jaten", "Inductor": "inductor"}.items():
        if name in names:
            progress(f"{name} is imported")
            torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(1))
    torch._dynamo.reset()


def progress(text: str) -> None:
    """A line that the next one overwrites, for who watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
