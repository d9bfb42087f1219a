"""Drawn programs in each way to run them: `python -m tests.drawn [--first 0] [--count 1000] [--ways compiled ...]`.

Those over a mesh, of eight devices that a CPU stands for, run if they are named. Each program that differs from eager
calls on the CPU is shown with its source; a line of numbers follows every hundred.
"""

from __future__ import annotations

import argparse
import collections
import math
import os
import sys
import warnings

from tests.harness import virtual_devices

from .drawing import programs
from .outcomes import WAYS, judge
from .over_mesh import AXES, WAYS_OVER_MESH


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drawn", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, *WAYS_OVER_MESH], default=[*WAYS])
    options = parser.parse_args(arguments)
    ways = WAYS | WAYS_OVER_MESH
    if any(name in WAYS_OVER_MESH for name in options.ways):  # JAX reads it when it first needs a device
        os.environ |= virtual_devices.environment(math.prod(AXES.values()))
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for number, program in enumerate(programs(options.first, options.count), 1):
        for name in options.ways:
            verdict = judge(program, ways[name])
            counts[verdict.outcome] += 1
            if verdict.outcome == "differs":
                print(f"{program.seed}, {name}:\n{verdict.details}\n{program.source}", flush=True)
        if number % 100 == 0:
            print(f"{number} programs: {dict(counts)}", flush=True)
    print(dict(counts))
    return int(bool(counts["differs"]))


if __name__ == "__main__":
    sys.exit(main())
