"""The table of libraries: its rows, what a result amounts to, and the page. `python -m tests.ecosystem` runs it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem import __main__ as command
from tests.ecosystem import page
from tests.ecosystem.results import breaks_more, deviation, judged
from tests.ecosystem.run import Run
from tests.ecosystem.table import ROWS, TOLERANCE, WAYS, Row

ROOT = Path(__file__).parents[1]


def _results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    return found


def test_the_page_is_that_of_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(_results()), "Fix: python -m tests.ecosystem --page"
    assert _results().keys() <= ROWS.keys()


def test_rows_that_were_not_run_say_so() -> None:
    rows = [line for line in page.page({}).splitlines() if "| not run |" in line]
    assert len(rows) == len(ROWS)


def test_rows_have_programs() -> None:
    files = {path.stem for path in (ROOT / "tests" / "ecosystem" / "programs").glob("[!_]*.py")}
    assert files == set(ROWS)
    for row in ROWS.values():
        assert "plain" in row.ways and set(row.ways) | set(row.reasons) <= set(WAYS)
        assert bool(row.why) == (row.tolerance != TOLERANCE)


def test_the_extra_is_what_the_rows_need() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {need for row in ROWS.values() for need in (row.needs if row.beside else [row.requirement])}
    assert set(extras["ecosystem"]) == wanted
    assert not any(row.needs for row in ROWS.values() if not row.beside)


@pytest.mark.parametrize(
    ("curve", "expected", "far"),
    [
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([math.nan], [math.nan], 0.0),
        ([math.nan], [1.0], math.inf),
        ([1.0], [1.0, 2.0], math.inf),
        ([0.0], [0.0], 0.0),
    ],
)
def test_deviation(curve: list[float], expected: list[float], far: float) -> None:
    assert deviation(curve, expected) == far


def test_results_are_judged() -> None:
    row = Row("timm", "a program", reasons={"device": "a reason"})
    plain, same, far = {"curve": [1.0]}, {"curve": [1.0], "first": 2.0}, {"curve": [2.0]}
    assert judged(row, "jaten", same, plain) == {"state": "same", "first": 2.0, "deviation": 0.0}
    states = [judged(row, *each, plain)["state"] for each in (("jaten", far), ("device", far), ("device", same))]
    assert states == ["differs", "known", "settled"]
    error = {"error": "ValueError: one\ntwo"}
    assert judged(row, "jaten", error, plain) == {"state": "failed", "error": "ValueError: one"}
    assert judged(row, "device", error, plain)["state"] == "known"


@pytest.mark.parametrize(("breaks", "expected", "more"), [(2, 1, True), (1, 1, False), (1, None, False)])
def test_breaks_are_compared(breaks: int, expected: int | None, more: bool) -> None:
    assert breaks_more({"jaten": {"breaks": breaks}, "aot_eager": {"breaks": expected}}) is more


def test_a_run_records() -> None:
    run = Run("plain")
    run.start()
    run.record(1)
    run.record(2, 3)
    found = run.result()
    assert found["curve"] == [1.0, 2.0, 3.0] and {"first", "step"} <= found.keys() and "breaks" not in found


def test_names_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["nothing"])
    assert re.search("no such row: nothing; there are lightning, ", capsys.readouterr().err)


def test_what_takes_too_long_or_ends_is_an_error(tmp_path: Path) -> None:
    python = tmp_path / "python"
    for script, message in (("exec sleep 60", "more than 0 s"), ("exit 3", "ended with 3")):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        assert message in command._run(python, "timm", "plain", 0.2 if "sleep" in script else 30, False)["error"]
