"""Runs the benchmarks: `python -m benchmarks [--case mlp] [--threads 1] [--json FILE]`.

Prints a Markdown table of the median times of a call and of the ratios of jaten's time to the others' (quartiles in
brackets; below 1, jaten is faster), and writes every measurement to a JSON file. The first call of each, which
compiles, and the warm-up are apart.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import jax
import numpy as np
import torch

from .contenders import CONTENDERS, Job
from .models import MODELS
from .timing import Timing, by_turns, ratio

SUBJECT = "jaten"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=[model.name for model in MODELS], help="only this model")
    parser.add_argument("--without", action="append", default=[], help="leave this contender out")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each contender")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch and for XLA alike")
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="where the measurements go")
    options = parser.parse_args()

    pin_threads(options.threads)
    results = []
    print(header())
    for model in MODELS:
        if options.case and model.name not in options.case:
            continue
        for job in CONTENDERS:
            jobs = {name: make(model) for name, make in CONTENDERS[job].items() if name not in options.without}
            first_calls = check_agreement(jobs)
            timings = by_turns(jobs, options.rounds)
            print(row(model.name, job, timings), flush=True)
            seconds = {name: {"first call": first_calls[name], "rounds": timings[name].rounds} for name in jobs}
            results.append({"model": model.name, "job": job, "seconds": seconds})
    report = {"environment": environment(options.threads), "results": results}
    options.json.write_text(json.dumps(report, indent=1) + "\n")


def pin_threads(threads: int) -> None:
    """Gives torch and XLA the same cores.

    XLA has no setting for its CPU threads: it makes as many as the process may use cores, when it first runs. So this
    must come before anything is computed.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)


def check_agreement(jobs: dict[str, Job], calls: int = 3) -> dict[str, float]:
    """The seconds of each one's first call, which compiles.

    Raises AssertionError unless all compute the same, for some calls: a benchmark of different things says nothing.
    """
    seconds, expected = {}, None
    for name, job in jobs.items():
        start = time.perf_counter()
        values = [np.asarray(job())]
        seconds[name] = time.perf_counter() - start
        values += [np.asarray(job()) for _ in range(calls - 1)]
        expected = expected or values
        for value, reference in zip(values, expected, strict=True):
            np.testing.assert_allclose(
                value, reference, rtol=1e-3, atol=1e-4, err_msg=f"{name} against {next(iter(jobs))}"
            )
    return seconds


def header() -> str:
    names = list(CONTENDERS["inference"])
    others = [name for name in names if name != SUBJECT]
    columns = ["model", "job", *names, *(f"{SUBJECT} / {name}" for name in others)]
    return "| " + " | ".join(columns) + " |\n" + "|" + " --- |" * len(columns)


def row(model: str, job: str, timings: dict[str, Timing]) -> str:
    names = list(CONTENDERS[job])
    times = [duration(timings[name].median) if name in timings else "" for name in names]
    ratios = [
        str(ratio(timings[SUBJECT], timings[name])) if {SUBJECT, name} <= timings.keys() else ""
        for name in names
        if name != SUBJECT
    ]
    return "| " + " | ".join([model, job, *times, *ratios]) + " |"


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def environment(threads: int) -> dict[str, object]:
    return {
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "jax": jax.__version__,
        "platform": platform.platform(),
    }


if __name__ == "__main__":
    main()
