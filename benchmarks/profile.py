"""Profile of a call, by kind of work, beside Inductor's.

`python -m benchmarks.profile [--case mlp] [--dtype float32] [--json FILE]`.

All are profiled, by JAX's profiler and by torch's, and what they ran is sorted into

- products: matrix products, convolutions and attention, with what is computed in the same kernel. Libraries compute
  them for both;
- loops: what else is computed, by jaten convolutions with a kernel for each channel as well;
- moves: transpositions, copies, and what else computes nothing;
- optimizer: AdamW of torch, eager, the same for both; a whole step of `compile_step` has it in its loops;
- around: what is left of the time of a call that is not profiled.

Prints a Markdown table of milliseconds a call, and the ratio to Inductor that jaten would have if it took time for
nothing but its products and the optimizer. Writes JSON, which `python -m benchmarks.report` reads.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import torch

from .contenders import CONTENDERS, STEP, SUBJECT, takes_part
from .hlo import kinds_of, programs_of
from .measure import JOBS, progress, settings
from .models import CASES, Case, case_of, known_name
from .processes import about, caches, write
from .table import profile_header, profile_rows
from .threads import pin_threads

OTHER = "Inductor"
CALLS = 5  # that are profiled
TIMED = 15  # that are not
OPTIMIZER = "Optimizer.step#AdamW.step"
Profiler = Callable[[Callable[[], Any]], Counter[str]]
"""Milliseconds of a call by kinds of kernels."""

# what computes products in torch, beside those whose names have "conv"
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "dot", "mv", "attention", "rnn", "lstm")
_MOVES = ("copy", "clone", "cat", "contiguous")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = f"only: {', '.join(CASES)}, or drawn ones, as torchvision:shufflenet_v2_x1_5"
    parser.add_argument("--case", action="append", type=known_name, metavar="NAME", help=names)
    parser.add_argument("--job", choices=JOBS, help="only this job")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch and for XLA alike")
    parser.add_argument("--json", type=Path, default=Path("build/profiles.json"), help="where the measurements go")
    parser.add_argument("--here", action="store_true", help="in this process, the first case alone")
    options = parser.parse_args()
    if options.here:
        options.json.write_text(json.dumps(_profiled(case_of(options.case[0]), options)))
        return 0
    print(profile_header(), flush=True)
    found: list[dict[str, Any]] = []
    for name in options.case or CASES:
        for result in profiles_of(name, options.job, options.dtype, options.threads):
            found.append(result)
            print(*profile_rows(result), sep="\n", flush=True)
    write(options.json, {**about("benchmarks.profile", options.threads), "profiles": found})
    return 0 if all("error" not in r for r in found) else 1


def profiles_of(case: str, job: str | None, dtype: str, threads: int) -> list[dict[str, Any]]:
    """The profiles of a case's jobs, or of one, made in a process of its own, with caches that are empty."""
    progress(case)
    arguments = ["--case", case, "--here", "--threads", str(threads), "--dtype", dtype]
    arguments += ["--job", job] if job else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        child = [sys.executable, "-m", "benchmarks.profile", *arguments, "--json", str(file)]
        done = subprocess.run(child, env=os.environ | caches(Path(folder)), stdout=subprocess.DEVNULL, check=False)
        progress("")
        if file.exists():
            return json.loads(file.read_text())
    jobs = [job] if job else case_of(case).jobs
    error = f"the process ended with {done.returncode}"
    return [{"case": case, "job": job, "dtype": dtype, "error": error} for job in jobs]


def _profiled(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore")
    pin_threads(options.threads)
    results = []
    for job in [j for j in case.jobs if options.job in (None, j)]:
        profilers = {SUBJECT: kernels_of_xla, STEP: kernels_of_xla, OTHER: _kernels_of_torch}
        contenders = {name: kernels for name, kernels in profilers.items() if takes_part(name, case, job)}
        with settings(case), torch._inductor.config.patch({"cpp.enable_kernel_profile": True}):
            dtype = getattr(torch, options.dtype)
            measured = {name: _measured(name, case, job, dtype, kernels) for name, kernels in contenders.items()}
        results.append({"case": case.name, "job": job, "dtype": options.dtype, "milliseconds": measured})
        torch._dynamo.reset()
        jax.clear_caches()
    return results


def _measured(name: str, case: Case, job: str, dtype: torch.dtype, kernels: Profiler) -> dict[str, float]:
    """Milliseconds of a call, in all and by kinds."""
    call = CONTENDERS[name](case, job, dtype)
    for _ in range(3):
        call()
    times = []
    for _ in range(TIMED):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    total = statistics.median(times) * 1e3
    kinds = kernels(call)
    kinds["optimizer"] = _optimizer(call)
    return {"call": total, **kinds, "around": max(0.0, total - sum(kinds.values()))}


def _profile(call: Callable[[], Any]) -> Any:
    """torch's, of some calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(CALLS):
            call()
    return profile.events()


def _optimizer(call: Callable[[], Any]) -> float:
    return sum(e.cpu_time_total for e in _profile(call) if e.name == OPTIMIZER) / CALLS / 1e3


def _kernels_of_torch(call: Callable[[], Any]) -> Counter[str]:
    """Inductor's kernels, and ATen's that it calls; not those of the optimizer."""
    kinds: Counter[str] = Counter()
    for event in _profile(call):
        kind = None if _within(event, OPTIMIZER) else _kind_of_torch(event.name)
        if kind is not None:
            kinds[kind] += event.self_cpu_time_total / CALLS / 1e3
    return kinds


def _within(event: Any, name: str) -> bool:
    while event is not None:
        if event.name == name:
            return True
        event = event.cpu_parent
    return False


def _kind_of_torch(name: str) -> str | None:
    if "cpp_fused" in name:
        return "loops"
    space, _, operator = name.rpartition("::")
    if not space:
        return None  # a region of a program, whose kernels count
    words = operator.strip("_").split("_")
    if "conv" in operator or any(w in _PRODUCTS for w in words):
        return "products"
    return "moves" if any(w in _MOVES for w in words) else "loops"


def kernels_of_xla(call: Callable[[], Any], calls: int = CALLS) -> Counter[str]:
    """Milliseconds of a call by kinds of the kernels of XLA's programs."""
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(calls):
                call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        lines = [line for plane in jax.profiler.ProfileData.from_file(str(file)).planes for line in plane.lines]
    gc.collect()
    texts = [c.as_text() for c in gc.get_objects() if isinstance(c, jax.stages.Compiled)]
    return kinds_of(lines, programs_of(text for text in texts if text), calls)


if __name__ == "__main__":
    sys.exit(main())
