"""The parts of a call: `python -m benchmarks.calls [--case linear] [--threads 1]`.

For each job of a case a Markdown row, in microseconds and as medians:

- step: the whole of a call, or of a training step, without an optimizer;
- torch: all of it but what follows, that is Dynamo's guards, AOTAutograd's wrappers, autograd, `zero_grad`;
- inputs, executable, outputs: what jaten adds, in the forward and the backward graph: tensors made into arrays, JAX's
  call of XLA's program, and arrays made into tensors;
- hot: JAX's call by itself, again and again, when all that it touches is in the processor's caches;
- Inductor: a step of its own, by turns with jaten's.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import torch

from jaten_ops.backend import graph_compilation
from jaten_ops.backend.generated_call import CallPlan

from .measure import warm_imports
from .models import CASES
from .models.case import Case, torch_loss
from .threads import pin_threads
from .timing import by_turns, ratio

JOBS = ("inference", "training")
COLUMNS = (
    "case",
    "job",
    "on",
    "step",
    "torch",
    "inputs",
    "executable",
    "outputs",
    "hot",
    "Inductor",
    "jaten / Inductor",
)
STEPS = 2000


class TimedGraph:
    """A graph's call, with the time that its parts take.

    Attributes:
        calls: how many calls there were.
        inside: seconds of the executable in them.
        before, after: seconds of the call until the executable starts, and from its end.
        arrays: the executable's last operands.
    """

    def __init__(self, program: CallPlan, *rest: Any) -> None:
        self.calls, self.inside, self.before, self.after = 0, 0.0, 0.0, 0.0
        self.arrays: tuple[Any, ...] = ()
        self._run, self._began, self._ended = program.run, 0.0, 0.0
        program.run = self._timed
        self._call = _generate(program, *rest)

    def _timed(self, *arrays: Any) -> Any:
        self.arrays = arrays
        self._began = time.perf_counter()
        results = self._run(*arrays)
        self._ended = time.perf_counter()
        return results

    def __call__(self, args: list[Any]) -> list[Any]:
        start = time.perf_counter()
        results = self._call(args)
        self.calls += 1
        self.before += self._began - start
        self.inside += self._ended - self._began
        self.after += time.perf_counter() - self._ended
        return results

    def hot(self, calls: int) -> float:
        """Seconds of the executable by itself."""
        return min(_seconds(lambda: self._run(*self.arrays), calls) for _ in range(5))


_generate = graph_compilation.generate_call


def _seconds(function: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def step_of(case: Case, job: str, backend: str, device: str) -> Callable[[], Any]:
    """A call of the case's model in inference, or a forward and a backward pass of it and its loss."""
    module, inputs, target = case.make()
    module, inputs = module.to(device), [x.to(device) for x in inputs]
    if job == "inference":
        call = torch.compile(module.eval(), backend=backend)

        def infer() -> Any:
            with torch.no_grad():
                return call(*inputs)

        return infer
    assert target is not None
    goal = target.to(device)
    compiled = torch.compile(lambda *inputs: torch_loss(module(*inputs), goal), backend=backend)

    def train() -> None:
        compiled(*inputs).backward()
        module.zero_grad()

    return train


def parts_of(case: Case, job: str, device: str, steps: int = STEPS) -> list[float]:
    """Seconds of a step and of its parts, as in the columns of the table."""
    graphs: list[TimedGraph] = []

    def timed(*args: Any) -> TimedGraph:
        graphs.append(TimedGraph(*args))
        return graphs[-1]

    graph_compilation.generate_call = timed  # type: ignore[assignment]  # it is called as what it replaces
    try:
        step = step_of(case, job, "jaten", device)
        for _ in range(steps // 10):
            step()
    finally:
        graph_compilation.generate_call = _generate
    totals, parts = [], []
    for _ in range(7):
        for graph in graphs:
            graph.calls, graph.before, graph.inside, graph.after = 0, 0.0, 0.0, 0.0
        totals.append(_seconds(step, steps // 7))
        parts.append([sum(getattr(g, name) / g.calls for g in graphs) for name in ("before", "inside", "after")])
    total, each = statistics.median(totals), [statistics.median(part) for part in zip(*parts, strict=True)]
    return [total, total - sum(each), *each, sum(graph.hot(steps) for graph in graphs)]


def row(case: Case, job: str, device: str) -> list[str]:
    """A row of the table."""
    parts = parts_of(case, job, device)
    torch._dynamo.reset()
    both = {"jaten": step_of(case, job, "jaten", device), "Inductor": step_of(case, job, "inductor", "cpu")}
    timings = by_turns(both, 30, 2.0)
    texts = [f"{seconds * 1e6:.0f}" for seconds in (*parts, timings["Inductor"].median)]
    return [case.name, job, device, *texts, str(ratio(timings["jaten"], timings["Inductor"]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=f"only: {', '.join(CASES)}")
    parser.add_argument("--job", choices=JOBS, help="only this job")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch and for XLA alike")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    pin_threads(options.threads)
    warm_imports(["jaten", "Inductor"])
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    for case in [c for n, c in CASES.items() if (n in options.case if options.case else c.overhead)]:
        for job in [j for j in case.jobs if options.job in (None, j)]:
            for device in ("cpu", "jax"):
                print(f"| {' | '.join(row(case, job, device))} |", flush=True)
                torch._dynamo.reset()
                jax.clear_caches()


if __name__ == "__main__":
    main()
