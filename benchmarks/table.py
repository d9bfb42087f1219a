"""Measurements as rows of Markdown: the median time of a call of each contender, and ratios with their quartiles."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .contenders import CAPTURE, CONTENDERS, ON_JAX, REFERENCE, STEP, SUBJECT, TORCHAX
from .timing import Ratio, Timing, ratio

Result = dict[str, Any]

# Whose time is divided by whose: below 1, the first is faster.
RATIOS = (
    (SUBJECT, REFERENCE),
    (SUBJECT, "Inductor"),
    (SUBJECT, TORCHAX),
    (SUBJECT, "JAX"),
    (ON_JAX, "Inductor"),
    (ON_JAX, "JAX"),
    (STEP, "Inductor"),
    (STEP, TORCHAX),
    (STEP, "JAX"),
)


def timings(result: Result) -> dict[str, Timing]:
    return {name: Timing(seconds["rounds"]) for name, seconds in result["seconds"].items()}


def ratio_of(result: Result, mine: str, theirs: str) -> Ratio | None:
    times = timings(result)
    return ratio(times[mine], times[theirs]) if {mine, theirs} <= times.keys() else None


def header() -> str:
    ratios = [f"{mine} / {theirs}" for mine, theirs in RATIOS]
    return (
        markdown(["case", "job", *CONTENDERS, *ratios]) + "\n" + markdown(["---"] * (2 + len(CONTENDERS) + len(ratios)))
    )


def row(result: Result) -> str:
    times, errors = timings(result), result["errors"]
    cells = [duration(times[n].median) if n in times else "failed" if n in errors else "" for n in CONTENDERS]
    ratios = [ratio_of(result, *pair) for pair in RATIOS]
    return markdown([result["case"], result["job"], *cells, *("" if r is None else str(r) for r in ratios)])


def markdown(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def without_empty_columns(lines: Sequence[str]) -> list[str]:
    """The lines of a table, a header of two lines among them, without the columns that are empty in all rows."""
    head, rule, *rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    full = [any(cells) for cells in zip(*rows, strict=True)]
    return [markdown(itertools.compress(cells, full)) for cells in (head, rule, *rows)]


def means(results: list[Result]) -> Iterator[str]:
    """Lines with the geometric mean of the ratios over the cases, and the worst one."""
    for job in dict.fromkeys(r["job"] for r in results):
        for mine, theirs in RATIOS:
            found = [(r, ratio_of(r, mine, theirs)) for r in results if r["job"] == job]
            there = {r["case"]: value.median for r, value in found if value is not None}
            if there:
                worst = max(there, key=there.__getitem__)
                mean = statistics.geometric_mean(there.values())
                yield (
                    f"{job}, {mine} / {theirs}: {mean:.2f} in the geometric mean of {len(there)} cases, "
                    f"median {statistics.median(there.values()):.2f}, at most {there[worst]:.2f} ({worst})"
                )


def compile_rows(results: list[Result]) -> Iterator[str]:
    """Seconds of the first call, in one process whose caches were empty."""
    names = [n for n in CONTENDERS if n not in (REFERENCE, CAPTURE)]
    yield markdown(["case", "job", *names])
    yield markdown(["---"] * (2 + len(names)))
    for result in results:
        seconds = result["seconds"]
        cells = [f"{seconds[n]['first call']:.2f} s" if n in seconds else "" for n in names]
        yield markdown([result["case"], result["job"], *cells])


FIRST_CALL_COLUMNS = ("case", "job", "contender", "import", "first call, cold", "warm", "peak, cold", "warm")


def first_call_header() -> str:
    return markdown(FIRST_CALL_COLUMNS) + "\n" + markdown(["---"] * len(FIRST_CALL_COLUMNS))


def first_call_row(found: Result) -> Iterator[str]:
    """A row for each contender."""
    for name, measured in found["contenders"].items():
        cells = ["failed"] + [""] * 4
        if "error" not in measured:
            cold, warm = measured["cold"], measured["warm"]
            cells = [f"{cold['import']:.2f} s", f"{cold['first call']:.2f} s", f"{warm['first call']:.2f} s"]
            cells += [f"{when['peak']:.0f} MiB" for when in (cold, warm)]
        yield markdown([found["case"], found["job"], name, *cells])


KINDS = ("products", "loops", "moves", "optimizer", "around")
"""The kinds of work that `python -m benchmarks.profile` tells apart."""


def profile_header() -> str:
    of_both = [f"{name}: {kind}" for name in (SUBJECT, "Inductor") for kind in ("a call", *KINDS)]
    cells = ["case", "job", *of_both, "ratio", "the least", "most of it"]
    return markdown(cells) + "\n" + markdown(["---"] * len(cells))


def profile_rows(found: Result) -> Iterator[str]:
    """Milliseconds by kinds; the ratio, the least that there could be with such products, and the largest share.

    A row for each of jaten's contenders.
    """
    case = found["case"] if found["dtype"] == "float32" else f"{found['case']}, {found['dtype']}"
    if "error" in found:
        yield markdown([case, found["job"], found["error"]])
        return
    theirs = found["milliseconds"]["Inductor"]
    for name, mine in found["milliseconds"].items():
        if name == "Inductor":
            continue
        cells = [f"{of.get(kind, 0):.3g}" for of in (mine, theirs) for kind in ("call", *KINDS)]
        least = (mine.get("products", 0) + mine["optimizer"]) / theirs["call"]
        most = max(KINDS, key=lambda kind: mine.get(kind, 0))
        cells += [f"{mine['call'] / theirs['call']:.2f}", f"{least:.2f}", f"{most} {mine[most] / mine['call']:.0%}"]
        job = found["job"] if name == SUBJECT else f"{found['job']}, {name}"
        yield markdown([case, job, *cells])


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
