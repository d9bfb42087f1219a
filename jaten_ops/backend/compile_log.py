"""A log of compiles, through Python's logging: the graph, its sizes, the time, and the count.

`TORCH_LOGS="jaten_ops"` shows a line for each XLA compile, `TORCH_LOGS="+jaten_ops"` the inputs' shapes and the graphs
as well (see `pipeline`), and so does `torch._logging.set_logs(modules={"jaten_ops": logging.INFO})`. Warnings are seen
without.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._guards import CompileContext

from jaten_ops.xla import compiles

from .nodes import overload_of, source_line

MANY = 8
"""The number of sizes of one dimension after whose compiles a graph warns."""

_LOG = logging.getLogger(__name__)


class GraphLog:
    """The compiles of one graph.

    Args:
        gm: the graph.
        kind: which of a function's graphs it is.

    Attributes:
        advises: whether it warns of compiles for many sizes.
    """

    def __init__(self, gm: torch.fx.GraphModule, kind: str = "graph") -> None:
        values = [v for n in gm.graph.nodes for v in [n.meta.get("val")] if n.op == "placeholder"]
        sizes = [s for v in values for s in (v.shape if isinstance(v, torch.Tensor) else [v])]
        nodes = [s.node for s in sizes if isinstance(s, torch.SymInt)]
        self._sources = {n.expr: n.shape_env.var_to_sources.get(n.expr, ()) for n in nodes}
        self._calls = [n for n in gm.graph.nodes if n.op == "call_function"]
        self.advises = True
        self._kind = kind
        self._id = CompileContext.current_compile_id()
        self._sizes: dict[Any, list[int]] = {}
        self._count, self._seconds, self._last = 0, 0.0, 0.0

    @property
    def _name(self) -> str:
        """The graph's name, with Dynamo's number of the program, as in torch's other logs."""
        return self._kind if self._id is None else f"{self._kind} {self._id}"

    @property
    def title(self) -> str:
        """The name, and the line that it comes from."""
        return self._name + self._line

    @property
    def _line(self) -> str:
        """The first line of the user's program that the graph comes from."""
        return next(filter(None, map(source_line, self._calls)), "")

    def name_of(self, symbol: Any) -> str:
        """A symbol's name for the user, such as "L['x'].size()[0]"."""
        found = self._sources.get(symbol)
        return found[0].name if found else str(symbol)

    def dim_of(self, symbol: Any) -> int | None:
        """The dimension of the function's argument whose size a symbol is."""
        found = self._sources.get(symbol)
        return getattr(found[0], "idx", None) if found else None

    @contextlib.contextmanager
    def compiling(self, symbols: dict[Any, int], inputs: Sequence[Any]) -> Iterator[None]:
        """A context that times and logs the compile of the graph for these sizes."""
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self._count, self._seconds, self._last = self._count + 1, self._seconds + seconds, seconds
        counters["jaten"]["compiles"] += 1
        _LOG.info("%s%s: compile %d in %.2f s%s", self._name, self._line, self._count, seconds, self._changes(symbols))
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s: inputs %s", self._name, ", ".join(_described(inputs)))
        self._advise()

    def compiled(self, executable: Any, inputs: Sequence[Any]) -> None:
        """Tells those who watch of the executable of the last compile."""
        if compiles.are_watched():
            operators = Counter(filter(None, (overload_of(n.target) for n in self._calls)))
            found = self._name, self._line, operators, tuple(_described(inputs)), self._last, executable
            compiles.tell_of(compiles.Compile(*found))

    def outside(self) -> None:
        """Tells those who watch of a graph whose operators run one by one."""
        compiles.tell_of(compiles.Outside(self._name, Counter(str(n.target) for n in self._calls)))

    def _changes(self, symbols: dict[Any, int]) -> str:
        """The sizes, with the old values of those that have changed; records them."""
        parts = []
        for symbol, size in symbols.items():
            before = self._sizes.setdefault(symbol, [])
            was = f" (was {before[-1]})" if before and before[-1] != size else ""
            parts.append(f"{self.name_of(symbol)} = {size}{was}")
            before.append(size)
        return ", " + ", ".join(parts) if parts else ""

    def _advise(self) -> None:
        many = [s for s, sizes in self._sizes.items() if len(set(sizes)) >= MANY]
        if many and self.advises:
            self.advises = False
            names = " and ".join(map(self.name_of, many))
            _LOG.warning(
                "%s has been compiled for %d sizes of %s, which took %.1f s in all. Fix: torch.compile(...,"
                " options={'buckets': 'powers of two'}) rounds sizes up where that does not change results.",
                self._name, MANY, names, self._seconds,
            )  # fmt: skip

    def refused(self, what: str, reason: str) -> None:
        """Warns that a size is not rounded up."""
        _LOG.warning("%s compiles for each %s, which the option buckets cannot round: %s", self._name, what, reason)

    def exact(self, reason: str) -> None:
        """Logs that sizes are not rounded of jaten's own accord."""
        _LOG.info("%s compiles for each size: %s", self._name, reason)

    def rounded(self, sizes: Mapping[Any, tuple[int, int]]) -> None:
        """Logs that sizes are rounded up of jaten's own accord."""
        names = [f"{self.name_of(s)} = {size} up to {larger}" for s, (size, larger) in sizes.items()]
        each = names[0] + (f", and {len(names) - 1} more" if len(names) > 1 else "")
        how = "its sizes change, and are rounded from now on"
        _LOG.info("%s: %s: %s", self._name, how, each)

    def tightened(self, sizes: Mapping[Any, int]) -> None:
        """Logs that sizes are rounded up by less."""
        names = ", ".join(f"{self.name_of(s)} up to {larger}" for s, larger in sizes.items())
        _LOG.info("%s: after many calls with smaller sizes: %s", self._name, names)

    def above(self, symbol: Any, size: int) -> None:
        """Logs that a size is above the largest bucket."""
        _LOG.info("%s: %s = %d is over the largest bucket", self._name, self.name_of(symbol), size)


def _described(inputs: Sequence[Any]) -> list[str]:
    return [f"{a.dtype}{list(a.shape)}" for a in inputs]
