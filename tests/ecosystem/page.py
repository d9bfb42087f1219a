"""The page of the results, docs/ecosystem.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.matrix import table

from .table import ROWS, TOLERANCE, Row

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "ecosystem.md", ROOT / "docs" / "ecosystem.json"

_HEAD = f"""# Libraries

<!-- Made by `python -m tests.ecosystem`, which has the rows; do not edit. -->

A small program of each library's documentation runs with a backend or a device named, and nothing else changed:
compiled by `torch.compile(..., backend="jaten")`, and with its tensors on the device `jax`. Its curve (losses, or what
else it computes) is compared with plain torch's on the CPU. A number is the largest difference, of the largest number
of the curve: up to {TOLERANCE:.0e} unless a reason below allows more. Breaks are those of the graph, beside those with
`backend="aot_eager"`, which captures graphs as jaten does and runs them by torch. What is empty was not run.

`make ecosystem` makes an environment with these libraries and runs all of it; `make ecosystem OPTIONS=timm` runs a row.
The programs are `tests/ecosystem/programs/`. These are the last results:
"""
_TIMES = """
## Times

Seconds, on two cores of a CPU, of programs this small: they show what a first call and a call cost, not how fast a
large model runs, for which see the [benchmarks](benchmarks.md). Compilers start without their caches.
"""


def _cell(row: Row, way: str, found: dict[str, Any]) -> str:
    """The outcome of a way: the difference, or that it has a reason, differs or failed."""
    if way not in row.ways:
        return "nothing to compile"
    result = found.get("ways", {}).get(way, {})
    if result.get("state") == "known":
        return "see below"
    if result.get("state") == "failed":
        return f"failed: `{result['error'][:80]}`"
    return f"{result['deviation']:.0e}" + (" (differs)" if result["state"] == "differs" else "") if result else ""


def _breaks(found: dict[str, Any]) -> str:
    counts = [found.get("ways", {}).get(way, {}).get("breaks") for way in ("jaten", "aot_eager")]
    return "" if None in counts else " / ".join(map(str, counts))


def _outcomes(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, row in ROWS.items():
        found = results.get(name, {})
        cells = [_cell(row, way, found) for way in ("jaten", "device")]
        yield (row.requirement, found.get("version") or "", row.about, found.get("date", "not run"), *cells,
               _breaks(found))  # fmt: skip


def _times(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, row in ROWS.items():
        ways = results.get(name, {}).get("ways", {})
        cells = []
        for key in ("first", "step"):
            for way in ("plain", "inductor", "jaten", "device"):
                seconds = ways.get(way, {}).get(key)
                cells.append("" if seconds is None else f"{seconds:.2g}")
        if any(cells):
            yield (row.requirement, *cells)


def _reasons() -> Iterator[str]:
    names = {"jaten": "compiled", "device": "on the device", "inductor": "by Inductor"}
    for row in ROWS.values():
        for way, reason in row.reasons.items():
            yield f"- **{row.requirement}**, {names.get(way, way)}: {reason}"
    for row in ROWS.values():
        if row.beside:
            yield f"- **{row.requirement}** is installed without its requirements: {row.beside}"
        if row.tolerance != TOLERANCE:
            yield f"- **{row.requirement}** may differ by {row.tolerance:.0e}: {row.why}"


def page(results: dict[str, Any]) -> str:
    """The page, from the last result of each row by its name."""
    lines = [_HEAD.rstrip("\n")]
    lines += table("library, version, program, run, compiled, device, breaks", list(_outcomes(results)))
    if reasons := list(_reasons()):
        lines += ["", "## Reasons", "", *reasons]
    if times := list(_times(results)):
        lines += ["", _TIMES.strip("\n")]
        lines += table("library, first: eager, Inductor, jaten, device, step: eager, Inductor, jaten, device", times)
    return "\n".join(lines) + "\n"


def write(results: dict[str, Any]) -> None:
    """Writes the results and the page; those of rows that are no more are dropped."""
    known = {name: results[name] for name in ROWS if name in results}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(known), encoding="utf-8")
