"""`make ecosystem`: runs the programs of other libraries in all ways, and writes docs/ecosystem.md.

`python -m tests.ecosystem [NAME ...]` makes an environment of the extra `ecosystem` (one that is there is used again),
and runs each row of the table in each way, in a process of its own with a time limit. A row that was not run keeps its
last result. `--page` only writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .page import PAGE, RESULTS, ROOT, write
from .results import breaks_more, judged
from .table import ROWS, TORCHS_OWN, Row


def _environment(folder: Path) -> Path:
    """The Python of the environment, which is made unless it is there."""
    python, done = folder / "bin" / "python", folder / ".installed"
    if done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, "--upgrade", "pip"], check=True)
    subprocess.run([*install, "-e", ".[ecosystem]"], check=True, cwd=ROOT)
    beside = [row.requirement for row in ROWS.values() if row.beside]
    subprocess.run([*install, "--no-deps", *beside], check=True)
    done.touch()
    return python


def _run(python: Path, name: str, way: str, limit: float, verbose: bool) -> dict[str, Any]:
    """Runs a row in one way; returns what it has recorded, or its error."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled"}
    cold = {"JATEN_CACHE": "0", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    output = None if verbose else subprocess.DEVNULL
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [str(python), "-m", "tests.ecosystem.child", name, way, str(file)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | quiet | cold, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"error": f"it took more than {limit:.0f} s"}
        if not file.exists():
            return {"error": f"its process ended with {process.returncode}"}
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def _row(python: Path, name: str, row: Row, ways: list[str] | None, verbose: bool) -> dict[str, Any]:
    """The result of a row: of each way, the plain one first."""
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "ways": {}}
    plain: dict[str, Any] = {}
    for way in row.ways:
        if way != "plain" and ways and way not in ways:
            continue
        result = _run(python, name, way, row.limit, verbose)
        found["version"] = result.pop("version", found.get("version"))
        plain = plain or result
        found["ways"][way] = judged(row, way, result, plain)
        print(f"   {way}: {found['ways'][way]}", flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ecosystem", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows, as timm; all")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="beside plain torch; nothing is written")
    parser.add_argument("--environment", type=Path, default=ROOT / "build" / "ecosystem", help="where it is made")
    parser.add_argument("--page", action="store_true", help="only write the page, from the last results")
    parser.add_argument("--verbose", action="store_true", help="show what the programs print")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - ROWS.keys():
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    chosen = [] if options.page else [name for name in ROWS if not options.names or name in options.names]
    python = _environment(options.environment.resolve()) if chosen else Path()
    wrong = []
    for number, name in enumerate(chosen, 1):
        print(f"== {number} of {len(chosen)}: {name}", flush=True)
        found = _row(python, name, ROWS[name], options.ways, options.verbose)
        judged_ways = {way: result for way, result in found["ways"].items() if way not in TORCHS_OWN}
        wrong += [f"{name} {way}" for way, result in judged_ways.items() if result["state"] not in ("same", "known")]
        wrong += [f"{name} breaks"] if breaks_more(found["ways"]) else []
        if options.ways is None:
            results[name] = found
            write(results)
    if options.ways is None:
        write(results)
        print(f"{PAGE.relative_to(ROOT)} is written.")
    print(f"Not as the table says: {', '.join(wrong)}" if wrong else "All is as the table says.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
