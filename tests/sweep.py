"""The exhaustive sweep: every check of tests/harness/checks.py over all of PyTorch's op database, in worker processes.

`python -m tests.sweep [--checks values jvp] [--opinfo 'linalg.*'] [--dtypes float32] [--most 2] [--shard 1/4]` writes a
line of JSON an item to build/sweep.jsonl as it goes, and all of it with totals to build/sweep.json at the end.
`--resume` takes up a sweep that was broken off, `--again` also runs anew what failed. A page of the report is made by
`python -m tools.codegen coverage --html --report build/sweep.json`.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tools.codegen import sweeps

from .harness.long_run import Progress, follow, read_lines
from .harness.pool import ROOT, Pool
from .harness.sweep_items import HELD, Item, Record, groups, record

COMMAND = (sys.executable, "-m", "tests.harness.sweep_worker")


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise ValueError(text)
    return int(index), int(count)


def _checks() -> list[str]:
    """The checks that this machine has what they need for."""
    return [name for name in sweeps.CHECKS if name != "cuda" or torch.cuda.is_available()]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--checks", nargs="+", choices=sweeps.CHECKS, default=_checks())
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


def lost(most: int | None, item: Item, seconds: float, how: str) -> Record:
    """The record of an item at which its worker was lost."""
    return record(item, most, "failed", seconds=seconds, failed=1, failures=[how])


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    warnings.simplefilter("ignore")
    lines = options.report.with_suffix(".jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    table = groups(options.checks, options.opinfo, options.dtypes, options.most, options.shard)
    before = read_lines(lines, Record) if options.resume or options.again else {}
    records = {k: r for k, r in before.items() if r.most == options.most}
    kept = {k for k, r in records.items() if not (options.again and r.status == "failed")}
    table = [left for group in table if (left := [item for item in group if item.key not in kept])]
    cache = Path(options.cache) if options.cache else None
    pool = Pool(
        table, min(options.jobs, len(table)), options.timeout, cache, COMMAND,
        lambda answer: Record(**answer), functools.partial(lost, options.most), {"most": options.most},
    )  # fmt: skip
    progress = Progress(sum(map(len, table)), sys.stderr)
    follow(pool, records, lines, progress)
    report = document(records.values(), options)
    options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for check, counts in report["totals"]["by_check"].items():
        print(f"{check}: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    print(f"written: {options.report}")
    return int(len(records) < len(kept) + progress.total or report["totals"]["all"]["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
