"""The sweep: that each item's end is recorded whatever it is, and that a report can be taken up and read."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest

from tests import sweep
from tests.harness import checks, exceptions, long_run, sweep_items
from tests.harness.pool import Pool
from tests.harness.sweep_items import Item, Record
from tools.codegen import sweeps

_WORKER = """
import json, os, signal, sys, time
print("{}", flush=True)
for line in sys.stdin:
    item = json.loads(line)["item"]
    if item["name"] == "crash":
        print("a last word", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if item["name"] == "hang":
        time.sleep(600)
    record = {**item, "most": 1, "status": "passed", "reason": str(os.getpid())}
    print(json.dumps({"record": record, "tired": item["name"] == "tired"}), flush=True)
"""


def _pool(names: list[str], script: str = _WORKER) -> Pool:
    items = [Item("values", name, "float32", name) for name in names]
    return Pool(
        [items], jobs=1, timeout=2.0, cache=None, command=[sys.executable, "-c", script],
        read=lambda answer: Record(**answer), lost=functools.partial(sweep.lost, 1),
    )  # fmt: skip


def test_a_crash_and_a_timeout_are_failures_of_their_items() -> None:
    names = ["first", "crash", "second", "hang", "third", "tired", "fourth"]
    records = [r for r in _pool(names).records(10.0) if r is not None]
    assert [r.name for r in records] == names
    ends = {r.name: (r.status, *r.failures) for r in records}
    assert ends.pop("crash") == ("failed", "the worker died of signal 9: a last word")
    assert ends.pop("hang") == ("failed", "no answer after 2 s")
    assert set(ends.values()) == {("passed",)}
    workers = {r.name: r.reason for r in records}
    assert len({workers[n] for n in ("first", "second", "third", "fourth")}) == 4
    assert workers["third"] == workers["tired"]


def test_a_worker_that_does_not_start_ends_the_sweep() -> None:
    with pytest.raises(Exception, match="exit status 1: SyntaxError"):
        list(_pool(["first"], "this is no Python").records(10.0))


def _run(item: Item, found: checks.Found, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setattr(checks, item.check, lambda *_: found)
    return sweep_items.run(item, None)


def test_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exceptions, "ROWS", [exceptions.Row("a known defect", ("values neg",))])
    differs = ["neg(float32[2]): values\n  differ [a.py:1]", "abs(float32[2]): so do these"]
    plain, known = Item("values", "add", "float32", "add"), Item("values", "neg", "float32", "neg")
    assert _run(plain, checks.Found(3), monkeypatch).status == "passed"
    failed = _run(plain, checks.Found(3, differs), monkeypatch)
    assert (failed.status, failed.failed, failed.compared) == ("failed", 2, 3)
    assert failed.failures[0] == "neg(float32[2]): values differ [a.py:1]"
    assert failed.overloads == ["abs", "neg"]
    assert _run(plain, checks.Found().need("nothing there"), monkeypatch).reason == "nothing there"
    assert _run(known, checks.Found(3, differs), monkeypatch).status == "xfail"
    mended = _run(known, checks.Found(3), monkeypatch)
    assert mended.status == "failed" and "a known defect" in mended.failures[0]
    assert sweep_items.run(Item("values", "sparse.mm", "float32", "sparse.mm"), None).status == "skipped"
    unknown = sweep_items.run(Item("jvp", "no such OpInfo", "float64", "no such OpInfo"), None)
    assert unknown.status == "failed" and "KeyError" in unknown.failures[0]


def test_shards_part_the_opinfos() -> None:
    patterns, checked = ["a*"], ["values", "second"]
    whole = sweep_items.groups(checked, patterns, [], None, (1, 1))
    parts = [sweep_items.groups(checked, patterns, [], None, (i, 3)) for i in (1, 2, 3)]
    assert sorted(i.key for part in parts for g in part for i in g) == sorted(i.key for g in whole for i in g)
    assert {i.dtype for g in sweep_items.groups(checked, patterns, ["int8"], None, (1, 1)) for i in g} == {"int8"}


@pytest.mark.exhaustive
def test_a_sweep_is_taken_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, lines = tmp_path / "sweep.json", tmp_path / "sweep.jsonl"
    done = Record("values", "neg", "float32", "neg", 1, "failed", failures=["of an earlier run"])
    lines.write_text(json.dumps(done.to_json()) + '\n{"check": "broken o', encoding="utf-8")
    arguments = ["--opinfo", "neg", "--checks", "values", "--dtypes", "float32", "int8", "--most", "1", "--jobs", "1"]
    arguments += ["--cache", "", "--report", str(report)]
    assert sweep.main([*arguments, "--resume"]) == 1
    assert {k[2] for k in long_run.read_lines(lines, Record)} == {"float32", "int8"}
    first = sweeps.read([report])
    assert {i["dtype"]: i["status"] for i in first.items} == {"float32": "failed", "int8": "passed"}
    assert sweep.main([*arguments, "--again"]) == 0
    second = sweeps.read([report])
    assert {i["dtype"]: i["status"] for i in second.items} == {"float32": "passed", "int8": "passed"}
    assert sweeps.totals(second.items)["by_check"] == {"values": {"passed": 2, "failed": 0, "xfail": 0, "skipped": 0}}
    assert sweeps.read([report, report]).items == second.items
    assert "values: 2 passed" in capsys.readouterr().out


def test_summary_has_totals_and_reasons() -> None:
    items = [Record("jvp", "neg", d, "neg", None, "xfail", "of old").to_json() for d in ("float64", "complex128")]
    text = sweeps.to_markdown(sweeps.Report("2", "0", "2000-01-01T00:00", None, items))
    assert "| jvp, float64 | 0 | 0 | 1 | 0 |" in text and "- of old (2)" in text and "all samples" in text
