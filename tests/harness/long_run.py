"""Long runs: records are written as lines of JSON, from which an interrupted run can be resumed."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from .pool import Pool

_LINE_EVERY = 30.0  # seconds between lines of progress where there is no terminal


def read_lines(path: Path, make: Callable[..., Any]) -> dict[Any, Any]:
    """The records in a file, the last one for each item. An incomplete line is ignored."""
    records = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = make(**json.loads(line))
        except json.JSONDecodeError:
            continue
        records[record.key] = record
    return records


def follow(pool: Pool, records: dict[Any, Any], lines: Path, progress: Progress) -> None:
    """Runs a pool until it ends or is interrupted; adds to the records, and writes all of them to a file."""
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


def _line(record: Any) -> str:
    return json.dumps(record.to_json()) + "\n"


class Progress:
    """A line of progress: items done and failed, their rate, and the remaining time."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self._stream = total, stream
        self._start = self._last = time.monotonic()
        self._terminal = stream.isatty()
        self._failed = self._done = 0

    def add(self, record: Any) -> None:
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
