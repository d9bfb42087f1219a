"""Drawn programs in each way to run them: `python -m tests.drawn [--first 0] [--count 1000] [--ways compiled ...]`.

Each that differs from eager calls on the CPU is shown with its source; a line of numbers follows every hundred.
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings

from .drawing import programs
from .outcomes import WAYS, judge


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drawn", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS])
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for number, program in enumerate(programs(options.first, options.count), 1):
        for name in options.ways:
            verdict = judge(program, WAYS[name])
            counts[verdict.outcome] += 1
            if verdict.outcome == "differs":
                print(f"{program.seed}, {name}:\n{verdict.details}\n{program.source}", flush=True)
        if number % 100 == 0:
            print(f"{number} programs: {dict(counts)}", flush=True)
    print(dict(counts))
    return int(bool(counts["differs"]))


if __name__ == "__main__":
    sys.exit(main())
