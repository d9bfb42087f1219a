"""The exhaustive sweep: every check of tests/checks.py over all of PyTorch's op database, in worker processes.

`python -m tests.sweep [--checks values jvp] [--opinfo 'linalg.*'] [--dtypes float32] [--most 2] [--shard 1/4]` writes a
line of JSON an item to build/sweep.jsonl as it goes, and all of it with totals to build/sweep.json at the end.
`--resume` takes up a sweep that was broken off, `--again` also runs anew what failed. A page of the report is made by
`python -m tools.codegen coverage --html --report build/sweep.json`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import torch

from tools.codegen import sweeps

from .sweep_items import HELD, Record, groups
from .sweep_pool import ROOT, Pool

_LINE_EVERY = 30.0  # seconds between lines of progress where there is no terminal


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise ValueError(text)
    return int(index), int(count)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--checks", nargs="+", choices=sweeps.CHECKS, default=list(sweeps.CHECKS))
    parser.add_argument("--opinfo", nargs="+", default=["*"], metavar="PATTERN", help="patterns of OpInfo names")
    parser.add_argument("--dtypes", nargs="+", choices=sorted(HELD), default=[], metavar="DTYPE", help="default: all")
    parser.add_argument("--most", type=int, help="samples of an OpInfo and dtype; default: all")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="i/n", help="the i-th of n parts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes, of 1 to 4 GiB each")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds an item may take")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "sweep.json")
    parser.add_argument("--resume", action="store_true", help="leave out what the report's lines have already")
    parser.add_argument("--again", action="store_true", help="as --resume, but run anew what failed")
    parser.add_argument("--cache", default=str(ROOT / "build" / "sweep-cache"), help="XLA's cache; '' for none")
    return parser.parse_args(arguments)


def read_lines(path: Path) -> dict[tuple[str, str, str], Record]:
    """The records of a file of lines; of an item that it has twice, the last. A line broken off is left out."""
    records = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = Record(**json.loads(line))
        except json.JSONDecodeError:
            continue
        records[record.key] = record
    return records


def _line(record: Record) -> str:
    return json.dumps(record.to_json()) + "\n"


def document(records: Iterable[Record], options: argparse.Namespace) -> dict[str, Any]:
    """The report: what was run with what, totals, and each item."""
    records = sorted(records, key=lambda r: r.key)
    items = [r.to_json() for r in records]
    return {
        "torch": torch.__version__,
        "jax": importlib.metadata.version("jax"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "shard": "{}/{}".format(*options.shard),
        "most": options.most,
        "seconds": round(sum(r.seconds for r in records), 1),
        "totals": sweeps.totals(items),
        "items": items,
    }


class _Progress:
    """Items done, failed, their rate and the time that remains: one line on a terminal, else a line now and then."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self._stream = total, stream
        self._start = self._last = time.monotonic()
        self._terminal = stream.isatty()
        self._failed = self._done = 0

    def add(self, record: Record | None) -> None:
        if record is not None:
            self._done += 1
            self._failed += record.status == "failed"
        now = time.monotonic()
        if self._terminal:
            print(f"\r\033[K{self._line(now)}", end="", file=self._stream, flush=True)
        elif now - self._last >= _LINE_EVERY:
            self._last = now
            print(self._line(now), file=self._stream, flush=True)

    def end(self) -> None:
        print(("\r\033[K" if self._terminal else "") + self._line(time.monotonic()), file=self._stream, flush=True)

    def _line(self, now: float) -> str:
        rate = self._done / max(now - self._start, 1e-9)
        left = datetime.timedelta(seconds=round((self.total - self._done) / rate)) if self._done else "?"
        return f"{self._done} of {self.total} done, {self._failed} failed, {rate:.2f}/s, {left} left"


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    warnings.simplefilter("ignore")
    lines = options.report.with_suffix(".jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    table = groups(options.checks, options.opinfo, options.dtypes, options.most, options.shard)
    before = read_lines(lines) if options.resume or options.again else {}
    records = {k: r for k, r in before.items() if r.most == options.most}
    kept = {k for k, r in records.items() if not (options.again and r.status == "failed")}
    table = [left for group in table if (left := [item for item in group if item.key not in kept])]
    cache = Path(options.cache) if options.cache else None
    pool = Pool(table, min(options.jobs, len(table)), options.most, options.timeout, cache)
    progress = _Progress(sum(map(len, table)), sys.stderr)
    with lines.open("w", encoding="utf-8") as stream:
        stream.writelines(_line(record) for record in records.values())
        try:
            for record in pool.records(1.0):
                progress.add(record)
                if record is not None:
                    records[record.key] = record
                    stream.write(_line(record))
                    stream.flush()
        except KeyboardInterrupt:
            print("\nbroken off: --resume takes it up", file=sys.stderr)
        finally:
            progress.end()
            report = document(records.values(), options)
            options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for check, counts in report["totals"]["by_check"].items():
        print(f"{check}: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    print(f"written: {options.report}")
    return int(len(records) < len(kept) + progress.total or report["totals"]["all"]["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
