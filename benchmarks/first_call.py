"""The first call in a fresh process: `python -m benchmarks.first_call --case mlp [--job inference] [--json FILE]`.

For each contender two processes, one after the other: cold, with empty caches, and warm, with those that the first
left. Prints a Markdown table and writes JSON for `python -m benchmarks.report`:

- import: seconds of importing what the contender needs;
- first call: seconds of the first call, or step, and of what makes it (`torch.compile`, `jax.jit`);
- peak: the largest resident size in three calls over that after the imports, in MiB: weights, what is computed, and
  what the compiler takes. The compilers that Inductor starts as processes are not in it. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .contenders import CAPTURE, CONTENDERS, TORCHAX, takes_part
from .measure import JOBS, progress
from .models import CASES
from .processes import about, caches, write
from .table import first_call_header, first_call_row

# even what compiles in no time is kept
KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=f"only: {', '.join(CASES)}")
    parser.add_argument("--job", choices=JOBS, help="only this job")
    parser.add_argument("--without", action="append", default=[], choices=CONTENDERS, help="leave this contender out")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch and for XLA alike")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, help="where the measurements go (build/first-calls-DTYPE.json)")
    options = parser.parse_args()
    names = [n for n in CONTENDERS if n not in (CAPTURE, TORCHAX) and n not in options.without]
    found = []
    print(first_call_header())
    for case in [c for n, c in CASES.items() if not options.case or n in options.case]:
        for job in [j for j in case.jobs if options.job in (None, j)]:
            taking_part = [n for n in names if takes_part(n, case, job)]
            contenders = {n: cold_and_warm(n, case.name, job, options) for n in taking_part}
            found.append({"case": case.name, "job": job, "dtype": options.dtype, "contenders": contenders})
            progress("")
            for line in first_call_row(found[-1]):
                print(line, flush=True)
    file = options.json or Path("build") / f"first-calls-{options.dtype}.json"
    write(file, {**about("benchmarks.first_call", options.threads), "first_calls": found})


def cold_and_warm(name: str, case: str, job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measurements of two processes that share their caches, empty at first."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for when in ("cold", "warm"):
            progress(f"{case}, {job}: {name}, {when}")
            arguments = [name, case, job, options.dtype, str(options.threads)]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.one_call", *arguments],
                env=os.environ | caches(Path(folder)) | KEEP_ALL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                return {"error": done.stderr.strip()[-2000:]}
            measured[when] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    main()
