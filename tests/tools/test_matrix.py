"""The matrix of versions: its table, what it counts, and the page that it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from jaten_ops.supported_versions import SUPPORTED
from tools import matrix

ROOT = Path(__file__).parents[2]


def _results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(matrix.RESULTS.read_text(encoding="utf-8"))
    return found


def test_the_page_is_that_of_the_results() -> None:
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(_results()), "Fix: python -m tools.matrix --page"


def test_the_page_has_the_rows_of_the_matrix() -> None:
    text = matrix.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (3\.\d+) \| (\S+) \| (\S+) \| ", text, re.M)
    assert rows == [pair[:3] for pair in matrix.PAIRS]
    assert _results().keys() <= {pair.name for pair in matrix.PAIRS}


def test_a_pair_without_a_result_is_said_not_to_have_run() -> None:
    rows = [line for line in matrix.page({}).splitlines() if line.startswith("| 3.")]
    assert len(rows) == len(matrix.PAIRS) and all("| not run |  |  |  |  |" in row for row in rows)


def test_pairs_are_of_the_supported_versions() -> None:
    """The oldest and the newest release of each, both crossed pairs, and what `make` installs."""
    for name in ("torch", "jax"):
        releases = {tuple(map(int, getattr(pair, name).split(".")[:2])) for pair in matrix.PAIRS}
        bounds = [tuple(map(int, version.split("."))) for version in SUPPORTED[name]]
        assert [min(releases), max(releases)] == bounds
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    for python in ("3.11", "3.12"):
        all_of = map(Requirement, lines)
        named = [r for r in all_of if r.marker is None or r.marker.evaluate({"python_version": python})]
        installed = {r.name: str(r.specifier).removeprefix("==") for r in named}
        assert (python, installed["torch"], installed["jax"]) in [pair[:3] for pair in matrix.PAIRS]
        assert installed["jaxlib"] == installed["jax"]
    assert [pair.part for pair in matrix.PAIRS if pair.why == "newest"] == [1]


def test_a_report_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="2" errors="1" skipped="3"/></testsuites>')
    assert matrix.counted(report) == {"passed": 3, "failed": 3, "skipped": 3}


def test_a_pair_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair without an environment is not run; the others have their results, and the page has all."""

    def result(pair: matrix.Pair, *_: Any) -> dict[str, Any]:
        good = {"date": "2026-11-26", "part": pair.part, "passed": 5, "failed": 0, "skipped": 1}
        return {"state": "not run"} if pair == matrix.PAIRS[0] else good

    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    monkeypatch.setattr(matrix, "RESULTS", tmp_path / "versions.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "versions.md")
    monkeypatch.setattr(matrix, "_run", result)
    assert matrix.main([]) == 1
    assert f"Not green: {matrix.PAIRS[0].name}" in capsys.readouterr().out
    assert matrix.PAGE.read_text().count("| 2026-11-26 |") == len(matrix.PAIRS) - 1
    assert matrix.main(["--page"]) == 0 and matrix.main([matrix.PAIRS[1].name]) == 0


def test_a_python_that_is_missing_is_no_error(tmp_path: Path) -> None:
    pair = matrix.PAIRS[0]._replace(python="3.99")
    assert matrix._run(pair, tmp_path, "1") == {}  # so that the row keeps its last result


def test_other_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        matrix.main(["py2.7"])
    assert "no such pair: py2.7" in capsys.readouterr().err


def test_failures_are_named_as_on_the_command_line(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_b" name="test_c[1]"><failure/></testcase>'
        '<testcase classname="tests.test_d.TestGolden" name="test_e"><error/></testcase>'
        '<testcase classname="tests.test_d" name="test_f"/></testsuite></testsuites>'
    )
    assert matrix.failures(report) == ["tests/a/test_b.py::test_c[1]", "tests/test_d.py::TestGolden::test_e"]


def _write(report: Path, *outcomes: bool) -> None:
    """A report of tests that pass or fail."""
    cases = [
        f'<testcase classname="tests.a" name="{n}">{"" if ok else "<failure/>"}</testcase>'
        for n, ok in enumerate(outcomes)
    ]
    numbers = f'tests="{len(outcomes)}" failures="{outcomes.count(False)}" errors="0" skipped="0"'
    report.write_text(f"<testsuites><testsuite {numbers}>{''.join(cases)}</testsuite></testsuites>")


def test_what_failed_is_run_again_until_nothing_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = matrix.PAIRS[0]
    _write(tmp_path / f"{pair.name}.xml", True, False, False)
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        tests = [part for part in command if part.startswith("tests/")]
        ran.append(tests)
        _write(tmp_path / f"{pair.name}.again.xml", *[n > 0 or len(ran) > 1 for n in range(len(tests))])

    monkeypatch.setattr(matrix.subprocess, "run", run)
    monkeypatch.setattr(matrix, "_environment", lambda *_: Path("python"))
    result = {"passed": 1, "failed": 2, "skipped": 0}
    for expected in (1, 0):
        result = matrix._run_again(pair, tmp_path, result)
        assert result == {"passed": 3 - expected, "failed": expected, "skipped": 0}
    assert ran == [["tests/a.py::1", "tests/a.py::2"], ["tests/a.py::0"]]
    assert matrix._run_again(pair, tmp_path, result) == {}
