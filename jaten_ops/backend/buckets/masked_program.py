"""The programs of a graph that leave out what is added to its inputs, one for each choice of open sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from jaten_ops.masking.masked_values import NotMasked
from jaten_ops.masking.size_choice import UsedSizes

from ..executable import Executable
from .masked_graph import MaskedGraph

SymbolGroups = tuple[frozenset[Any], ...]
"""The symbols whose sizes are open, those with equal sizes together."""


class MaskedProgram:
    """A graph with open sizes, and its executable for larger ones.

    Attributes:
        graph: it.
        made: the larger sizes of jaten's choice for which there are executables, the tighter ones first.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, run: Executable, groups: SymbolGroups, known: Mapping[Any, int]
    ) -> None:
        info = run.info
        self.graph = MaskedGraph(gm, torch.get_default_dtype(), info.numbers, groups, known)
        numbers = info.numbers | frozenset(self.graph.sizes)
        self._run = Executable(gm, info.having(numbers=numbers), self.graph, run.log)
        self.made: list[UsedSizes] = []

    def __call__(self, args: list[Any], symbols: Mapping[Any, int]) -> list[Any]:
        """The results for larger inputs, in which there are those of some sizes."""
        return self._run([*args, *self.graph.named(symbols).values()])


class MaskedPrograms:
    """The programs of one graph.

    Args:
        gm: the graph.
        run: its executable for all inputs as they are.

    Attributes:
        refused: why there are none; empty if there may be some.
    """

    def __init__(self, gm: torch.fx.GraphModule, run: Executable) -> None:
        self._gm, self._run = gm, run
        self._made: dict[Any, MaskedProgram] = {}
        self.refused = ""

    def program(
        self, open_sizes: Sequence[Any], symbols: Mapping[Any, int], classes: Mapping[Any, Any]
    ) -> MaskedProgram:
        """The program with these sizes open, of which those of one class are always equal.

        Raises:
            NotMasked: there is none.
        """
        if self._run.info.partial_writes:
            raise NotMasked("writes to a part of an input")
        by_class: dict[Any, set[Any]] = {}
        for symbol in open_sizes:
            by_class.setdefault(classes[symbol], set()).add(symbol)
        groups = tuple(map(frozenset, by_class.values()))
        known = {s: size for s, size in symbols.items() if s not in open_sizes}
        key = groups, tuple(known.items())
        if key not in self._made:
            self._made[key] = MaskedProgram(self._gm, self._run, groups, known)
        return self._made[key]
