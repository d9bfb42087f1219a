"""Every combination in worker processes, with a report.

`python -m tests.combinations [--ways 'compiled*'] [--surroundings 'grad*'] [--programs direct] [--most 300] [--resume]`
writes a line of JSON a case to build/combinations.jsonl as it goes, and the tables to build/combinations.md at the end.
`--resume` takes up a run that was broken off, `--again` also runs anew what failed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.harness.long_run import Progress, follow, read_lines
from tests.harness.pool import ROOT, Pool

from .report import to_markdown
from .table import Case, Record, cases

COMMAND = (sys.executable, "-m", "tests.combinations.worker")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.combinations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("ways", "surroundings", "programs"):
        parser.add_argument(f"--{name}", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--most", type=int, help="so many cases, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes, of 1 to 3 GiB each")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a case may take")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "combinations.md")
    parser.add_argument("--resume", action="store_true", help="leave out what the report's lines have already")
    parser.add_argument("--again", action="store_true", help="as --resume, but run anew what failed")
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[Case]:
    def matches(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, p) for p in patterns)

    found = [
        c
        for c in cases()
        if matches(c.way, options.ways)
        and matches(c.surrounding, options.surroundings)
        and matches(c.program, options.programs)
    ]
    if options.most is not None and options.most < len(found):
        found = random.Random(options.seed).sample(found, options.most)
    return found


def workers(groups: Sequence[Sequence[Case]], jobs: int, timeout: float) -> Pool:
    """Processes that run groups of cases, each with so many seconds."""
    return Pool(
        groups, jobs, timeout, None, COMMAND,
        lambda answer: Record(**answer), lambda case, seconds, how: Record(*case.key, "failed", how, seconds),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    lines = options.report.with_suffix(".jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    records = read_lines(lines, Record) if options.resume or options.again else {}
    kept = {k for k, r in records.items() if not (options.again and r.status == "failed")}
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in _chosen(options):
        if case.key not in kept:
            groups[case.program, case.way].append(case)
    table = list(groups.values())
    follow(
        workers(table, min(options.jobs, len(table)), options.timeout),
        records,
        lines,
        Progress(sum(map(len, table)), sys.stderr),
    )
    options.report.write_text(to_markdown(records.values()), encoding="utf-8")
    failed = [r for r in records.values() if r.status == "failed"]
    for record in failed[:50]:
        print(f"{record.way}: {record.surrounding}: {record.program}: {record.reason[:200]}")
    print(f"{len(records)} combinations, {len(failed)} failed; written: {options.report}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
