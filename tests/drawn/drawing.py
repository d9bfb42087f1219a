"""A program from a seed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .statements import IN_PLACE_VIEWS, OUT, RESULTS, VIEWS, WRITES

_SHAPES = {"a": (3, 4), "b": (4, 4), "c": (2, 3, 4)}


class Program(NamedTuple):
    """A drawn program.

    Attributes:
        seed: the one that it is made of.
        source: a function `program(a, b, c)` that returns a tuple of tensors.
        inputs: by name.
        trains: those of them that require a gradient.
    """

    seed: int
    source: str
    inputs: dict[str, torch.Tensor]
    trains: frozenset[str]


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """True if elements of a tensor have one place in memory."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            return True
        reach += stride * (size - 1)
    return False


class _Draw:
    """The state of a draw: the tensors so far, which are those of a run on the CPU."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.inputs = {name: torch.randn(shape, generator=generator) for name, shape in _SHAPES.items()}
        learns = self.random.random() < 0.7
        self.trains = frozenset(name for name in _SHAPES if learns and self.random.random() < 0.6)
        self.tensors: dict[str, Any] = {
            name: value.clone().requires_grad_(name in self.trains) for name, value in self.inputs.items()
        }
        self.lines: list[str] = []

    def _filled(self, template: str, name: str) -> str:
        dims = max(self.tensors[name].dim(), 1)
        i, j = self.random.randrange(dims), self.random.randrange(dims)
        size = self.tensors[name].shape[i] if self.tensors[name].dim() else 1
        other = self.random.choice(list(self.tensors))
        number = round(self.random.uniform(-2, 2), 2)
        return template.format(v=name, w=other, i=i, j=j, k=self.random.randrange(max(size, 1)), c=number)

    def _has_run(self, line: str) -> bool:
        """Runs a statement; False if torch refuses it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what torch warns of is deprecated
                exec(line, {"torch": torch}, self.tensors)  # of the tables
        except Exception:  # whatever torch raises
            return False
        return True

    def make(self) -> None:
        """Adds a statement that makes a tensor."""
        made, name = f"t{len(self.lines)}", self.random.choice(list(self.tensors))
        is_view = self.random.random() < 0.55
        line = f"{made} = {self._filled(self.random.choice(VIEWS if is_view else RESULTS), name)}"
        # results of the device are row-major, and with others it differs what is a view of them
        if self._has_run(line) and (is_view or self.tensors[made].is_contiguous()):
            self.lines.append(line)
        else:
            self.tensors.pop(made, None)

    def write(self) -> None:
        """Adds a statement that writes, or that turns a tensor into a view of itself."""
        name = self.random.choice(list(self.tensors))
        kind = self.random.random()
        template = self.random.choice((OUT,) if kind < 0.05 else IN_PLACE_VIEWS if kind < 0.15 else WRITES)
        line = self._filled(template, name)
        written = line.partition("out=")[2].rstrip(")") or name
        if overlaps_itself(self.tensors[written]) or self.tensors[written].shape != self.tensors[name].shape:
            return
        if template not in IN_PLACE_VIEWS and self.random.random() < 0.15:
            line = f"with torch.no_grad(): {line}"
        if self._has_run(line):
            self.lines.append(line)


def draw(seed: int) -> Program | None:
    """The program of a seed; None if it would return nothing."""
    draw = _Draw(seed)
    for _ in range(draw.random.randint(6, 16)):
        draw.make() if draw.random.random() < 0.65 else draw.write()
    made = [name for name in draw.tensors if name not in draw.inputs]
    if not made:
        return None
    returned = draw.random.sample(made, min(len(made), draw.random.randint(1, 4)))
    body = [*draw.lines, f"return ({', '.join(returned)},)"]
    source = "def program(a, b, c):\n" + "".join(f"    {line}\n" for line in body)
    return Program(seed, source, draw.inputs, draw.trains)


def programs(first: int, count: int) -> Iterator[Program]:
    """The programs of seeds in a row, but those that return nothing."""
    for seed in range(first, first + count):
        program = draw(seed)
        if program is not None:
            yield program
