"""Runs the benchmarks: `python -m benchmarks [--case mlp] [--draw SEED] [--job inference] [--threads 1] [--json FILE]`.

Prints a Markdown table of the median times of a call and of ratios of times (quartiles in brackets; below 1, the first
is faster), and writes every measurement to a JSON file, which `python -m benchmarks.report` reads. The first call of
each contender, which compiles, and the warm-up are apart. Each case runs in a process of its own, with empty caches.
What takes more than 1.15 of Inductor's time is profiled as well, as by `python -m benchmarks.profile`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .contenders import STEP, SUBJECT
from .measure import add_options, progress
from .models import CASES, Case, drawn
from .processes import about, caches, write
from .profile import OTHER, profiles_of
from .table import Result, header, means, profile_header, profile_rows, ratio_of, row

QUICK = {"rounds": 10, "seconds": 0.5}
LONG = ("parameters-1000",)  # Inductor compiles it for a minute
BAR = 1.15  # of Inductor's time, over which a profile says what the time goes to


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=f"only: {', '.join(CASES)}")
    parser.add_argument("--draw", type=int, metavar="SEED", help="instead: models of libraries that a seed draws")
    parser.add_argument("--number", type=int, default=20, help="of models that are drawn")
    add_options(parser)
    parser.add_argument("--quick", action="store_true", help=f"fewer and shorter turns, without {', '.join(LONG)}")
    parser.add_argument("--json", type=Path, help="where the measurements go (build/benchmarks-DTYPE.json)")
    options = parser.parse_args()
    drawn_or_not = "" if options.draw is None else "drawn-"
    file = options.json or Path("build") / f"benchmarks-{drawn_or_not}{options.dtype}.json"
    file.unlink(missing_ok=True)
    if options.quick:
        vars(options).update(QUICK)

    start = time.monotonic()
    cases = [case for case in _chosen(options) if options.job in (None, *case.jobs)]
    results: list[Result] = []
    profiles: list[Result] = []
    print(header(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for done, case in enumerate(cases):
            progress(f"{case.name}, {done + 1} of {len(cases)}, {time.monotonic() - start:.0f} s")
            for result in run(case, options, Path(folder)):
                results.append({**result, "dtype": options.dtype})
                progress("")
                print(row(result), flush=True)
                if any(r is not None and r.median > BAR for r in (ratio_of(result, n, OTHER) for n in (SUBJECT, STEP))):
                    profiles += profiles_of(case.name, result["job"], options.dtype, options.threads)
            # at each case, so that a run that is ended early has some
            write(file, {**about("benchmarks", options.threads), "results": results, "profiles": profiles})
    for line in means(results):
        print(line)
    if profiles:
        print(profile_header(), *(line for found in profiles for line in profile_rows(found)), sep="\n")
    failures = [(r["case"], r["job"], name, text) for r in results for name, text in r["errors"].items()]
    for case_name, job, name, text in failures:
        print(f"{case_name}, {job}: {name} failed: {text}", file=sys.stderr)
    print(f"{file} written after {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if failures else 0


def _chosen(options: argparse.Namespace) -> list[Case]:
    if options.draw is not None:
        return list(drawn.draw(options.draw, options.number))
    chosen = options.case or [name for name in CASES if not (options.quick and name in LONG)]
    return [case for name, case in CASES.items() if name in chosen]


def run(case: Case, options: argparse.Namespace, folder: Path) -> list[Result]:
    """Measures a case in a process of its own. The folder is for caches, in which no case finds its own graphs."""
    arguments = ["--case", case.name]
    for name in ("job", "rounds", "seconds", "threads", "dtype"):
        if getattr(options, name) is not None:
            arguments += [f"--{name}", str(getattr(options, name))]
    arguments += [text for name in options.without for text in ("--without", name)]
    file = folder / f"{case.name.replace(':', '-')}.json"
    child = [sys.executable, "-m", "benchmarks.measure", *arguments, "--json", str(file)]
    done = subprocess.run(child, env=os.environ | caches(folder), check=False)
    if file.exists():
        return json.loads(file.read_text())
    jobs = [options.job] if options.job else case.jobs
    error = {SUBJECT: f"the process ended with {done.returncode}"}
    return [{"case": case.name, "job": job, "seconds": {}, "errors": error} for job in jobs]


if __name__ == "__main__":
    sys.exit(main())
