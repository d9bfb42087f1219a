"""One run of a program: the way it is run, and the curve, times and graph breaks that it has recorded."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters


class Run:
    """A program's instructions for the way that it is run, and what it records.

    Attributes:
        way: one of `table.WAYS`.
        device: the device of its tensors, "cpu" or "jax".
        backend: that of torch.compile, or None.
        curve: the numbers that are compared with those of plain torch.
    """

    def __init__(self, way: str) -> None:
        self.way = way
        self.device = "jax" if way == "device" else "cpu"
        self.backend = None if way in ("plain", "device") else way
        self.curve: list[float] = []
        self._times: list[float] = []
        torch.manual_seed(0)

    def compile(self, function: Callable[..., Any], **options: Any) -> Any:
        """A function or module, compiled if this way compiles."""
        return function if self.backend is None else torch.compile(function, backend=self.backend, **options)

    def compile_in_place(self, module: torch.nn.Module) -> None:
        """Compiles a module that goes to a trainer, whose class and state dict stay as they are."""
        if self.backend is not None:
            module.compile(backend=self.backend)

    def start(self) -> None:
        """The time of the first step begins: what was before is not measured."""
        self._times.append(time.perf_counter())

    def record(self, *values: Any) -> None:
        """A step has ended, with these numbers, of any kind that `float` takes."""
        self.curve += [float(value) for value in values]
        self._times.append(time.perf_counter())

    def result(self) -> dict[str, Any]:
        """The record: a step's time is the median of those after the first."""
        steps = [b - a for a, b in zip(self._times, self._times[1:], strict=False)]
        found: dict[str, Any] = {"curve": self.curve, "first": steps[0]}
        if steps[1:]:
            found["step"] = statistics.median(steps[1:])
        if self.backend is not None:
            if not counters["stats"]["unique_graphs"]:
                raise AssertionError("nothing was compiled")
            found["breaks"] = sum(counters["graph_break"].values())
            found["graphs"] = counters["stats"]["unique_graphs"]
        return found
