"""`make matrix`: runs the tests with each pair of versions in a table, and writes docs/versions.md.

`python -m tools.matrix [PAIR ...]` makes an environment for each pair (one that is there is used again), installs jaten
with its test extra, and runs the tests: all of the default run for the newest pair, a fixed fifth for the others. A
pair that fails does not stop the others. A row that was not run keeps its last result. `--page` only writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaten_ops.supported_versions import SUPPORTED
from jaten_ops.xla.compiler_bugs import BUGS

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "versions.md", ROOT / "docs" / "versions.json"
PART = 5


class Pair(NamedTuple):
    """Versions that are tested together.

    Attributes:
        python: the release of Python, as "3.12".
        torch, jax: the versions; jaxlib has JAX's.
        why: what the pair stands for.
        part: one of how many tests is run.
    """

    python: str
    torch: str
    jax: str
    why: str
    part: int = PART

    @property
    def name(self) -> str:
        return f"py{self.python}-torch{self.torch}-jax{self.jax}"


PAIRS = (
    Pair("3.11", "2.13.0", "0.10.0", "oldest"),
    Pair("3.11", "2.13.0", "0.10.2", "what `make` installs for Python 3.11"),
    Pair("3.11", "2.14.1", "0.10.2", "a newer torch"),
    Pair("3.11", "2.15.0", "0.10.2", "crossed: the newest torch, the last JAX for Python 3.11"),
    Pair("3.12", "2.13.0", "0.12.0.1", "crossed: the oldest torch, the newest JAX, as `make` installs for Python 3.12"),
    Pair("3.13", "2.15.0", "0.12.0.1", "newest", part=1),
)

_HEAD = """# Versions

<!-- Made by `python -m tools.matrix`, which has the pairs, and of jaten_ops/xla/compiler_bugs.py; do not edit. -->

pip installs jaten with torch {torch}, JAX {jax} and Python from 3.11 on; the table says what was run.
Another torch or JAX gives one warning at the import; a feature that needs what it has moved raises
`UnsupportedVersionError` when it is used.

`make matrix` makes an environment for each pair below and runs the tests in it, for hours;
`make matrix OPTIONS=py3.11-torch2.14.1-jax0.10.2` runs one pair, with `--again` only what failed in its last run, which
is counted anew. These are the last results:
"""
_BUGS = """
## Bugs of XLA's compilers

Programs that jaten compiles get the options in the last column, with the versions in the second, unless `XLA_FLAGS`
sets them. A function of `as_jax` that you give to `jax.jit` yourself and an exported program do not: pass them as
`compiler_options`, or in `XLA_FLAGS`.
"""


def table(head: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    names = head.split(", ")
    yield ""
    for cells in (names, ("---",) * len(names), *rows):
        yield "| " + " | ".join(cells) + " |"


def page(results: dict[str, Any]) -> str:
    """The page, from the last result of each pair by its name."""
    rows = []
    for pair in PAIRS:
        found = results.get(pair.name, {})
        counts = [str(found.get(key, "")) for key in ("passed", "failed", "skipped")]
        share = {None: "", 1: "all"}.get(found.get("part"), f"one of {found.get('part')}")
        rows.append((pair.python, pair.torch, pair.jax, pair.why, found.get("date", "not run"), share, *counts))
    bugs = []
    for bug in BUGS:
        options = ", ".join(f"`{name}={value}`" for name, value in bug.options.items())
        bugs.append((bug.platform, " to ".join(dict.fromkeys((bug.first, bug.last))), bug.what, options))
    ranges = {name: " to ".join(versions) for name, versions in SUPPORTED.items()}
    lines = [_HEAD.format(**ranges).rstrip("\n")]
    lines += table("Python, torch, JAX, stands for, run, tests, passed, failed, skipped", rows)
    lines += ["", _BUGS.strip("\n")]
    lines += table("platform, jaxlib, what goes wrong, options", bugs)
    return "\n".join(lines) + "\n"


def _python(version: str) -> str:
    """A Python of a release that runs: pyenv has a file for each version, active or not."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(f"python{version}"), *sorted(root.glob(f"{version}.*/bin/python"))):
        if found is None:
            continue
        tried = subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True, check=False)
        if tried.returncode == 0:
            return str(found)
    raise FileNotFoundError(f"no Python {version}")


def _environment(pair: Pair, folder: Path) -> Path:
    """The Python of a pair's environment, which is made unless it is there."""
    here, constraints = folder / pair.name, folder / f"{pair.name}.txt"
    python, done = here / "bin" / "python", here / ".installed"
    install = [str(python), "-m", "pip", "install", "--quiet"]
    if done.exists():  # perhaps made for another checkout
        subprocess.run([*install, "--no-deps", "-e", "."], check=True, cwd=ROOT)
        return python
    folder.mkdir(parents=True, exist_ok=True)
    constraints.write_text(f"torch=={pair.torch}\njax=={pair.jax}\njaxlib=={pair.jax}\n")
    subprocess.run([_python(pair.python), "-m", "venv", "--clear", str(here)], check=True)
    subprocess.run([*install, "--upgrade", "pip"], check=True)
    subprocess.run(
        [*install, "-e", ".[test]"], check=True, cwd=ROOT, env=os.environ | {"PIP_CONSTRAINT": str(constraints)}
    )
    done.touch()
    return python


def counted(report: Path) -> dict[str, int]:
    """The counts of tests in a report of pytest's; those that are expected to fail count as skipped."""
    suites = ET.parse(report).getroot().iter("testsuite")
    numbers = [{key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")} for suite in suites]
    all_of = {key: sum(suite[key] for suite in numbers) for key in numbers[0]}
    failed = all_of["failures"] + all_of["errors"]
    passed = all_of["tests"] - failed - all_of["skipped"]
    return {"passed": passed, "failed": failed, "skipped": all_of["skipped"]}


def failures(report: Path) -> list[str]:
    """The tests that failed in a report of pytest's, as its command line takes them."""
    found = []
    for case in ET.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            *modules, last = case.get("classname", "").split(".")
            inside = [last] if last[:1].isupper() else []  # a class of tests
            path = "/".join(modules if inside else [*modules, last])
            found.append("::".join([f"{path}.py", *inside, case.get("name", "")]))
    return found


def _run_again(pair: Pair, folder: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Runs what failed in the last run of a pair, after a mend; returns its result with those counted anew."""
    report, again = folder / f"{pair.name}.xml", folder / f"{pair.name}.again.xml"
    last = [failures(file) for file in (again, report) if file.exists()]
    tests = next((found for found in last if len(found) == before.get("failed")), [])
    if not tests:
        print(f"{pair.name}: its last run is not in {folder}, or nothing failed in it", flush=True)
        return {}
    command = [str(_environment(pair, folder)), "-m", "pytest", "-q", f"--junitxml={again}"]
    subprocess.run([*command, *tests], cwd=ROOT, check=False)
    new = counted(again)
    return before | {key: before[key] + new[key] for key in ("passed", "skipped")} | {"failed": new["failed"]}


def _run(pair: Pair, folder: Path, processes: str) -> dict[str, Any]:
    """Runs a pair's tests; returns its result, which is empty if they could not be run."""
    try:
        python = _environment(pair, folder)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"{pair.name}: {error}", flush=True)
        return {}
    report = folder / f"{pair.name}.xml"
    report.unlink(missing_ok=True)
    report.with_suffix(".again.xml").unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-n", processes, "--one-of", str(pair.part), f"--junitxml={report}"]
    subprocess.run([*command, "tests"], cwd=ROOT, check=False)
    if not report.exists():
        print(f"{pair.name}: pytest ended early", flush=True)
        return {}
    return {"date": datetime.date.today().isoformat(), "part": pair.part} | counted(report)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="names of pairs, as py3.11-torch2.13.0-jax0.10.2; all")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "matrix", help="where they are made")
    parser.add_argument("--processes", default="auto", help="how many run the tests of a pair")
    parser.add_argument("--one-of", type=int, metavar="N", help="run one of N tests, in place of the table's part")
    parser.add_argument("--again", action="store_true", help="run what failed in the last run, and count it anew")
    parser.add_argument("--page", action="store_true", help="only write the page, from the last results")
    options = parser.parse_args(arguments)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    chosen = [] if options.page else [p for p in PAIRS if not options.pairs or p.name in options.pairs]
    if unknown := set(options.pairs) - {pair.name for pair in PAIRS}:
        parser.error(f"no such pair: {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in PAIRS)}")
    failed = []
    for number, pair in enumerate(chosen, 1):
        print(f"== {number} of {len(chosen)}: {pair.name} ({pair.why})", flush=True)
        began = time.monotonic()
        pair = pair if options.one_of is None else pair._replace(part=options.one_of)
        folder = options.environments.resolve()
        if options.again:
            result = _run_again(pair, folder, results.get(pair.name, {}))
        else:
            result = _run(pair, folder, options.processes)
        print(f"== {pair.name}: {result}, {time.monotonic() - began:.0f} s", flush=True)
        if result:
            results[pair.name] = result
        if result.get("failed", 1):
            failed.append(pair.name)
        _write(results)
    _write(results)
    print(f"{PAGE.relative_to(ROOT)} is written." + (f" Not green: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


def _write(results: dict[str, Any]) -> None:
    known = {pair.name: results[pair.name] for pair in PAIRS if pair.name in results}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    PAGE.write_text(page(known), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
