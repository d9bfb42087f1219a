"""Rounded sizes: a graph runs with its dynamic sizes rounded up, so that it compiles once for many of them.

There are two ways. If `row_proof` proves that rows may be added, copies of the first, the graph's own executable does
it. Otherwise `masked_graph` makes a program that leaves out what is added. What neither can do compiles as usual, for
each size, and it is said why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch.fx.experimental.symbolic_shapes import free_symbols

from jaten_ops.arrays import partitioned
from jaten_ops.errors import JatenError
from jaten_ops.masking.masked_values import NotMasked
from jaten_ops.masking.size_choice import SizeHistory, Symbols, UsedSizes, larger_sizes

from ..executable import Executable
from ..layout import concretize, concretized, has_symbolic_size, symbols_of
from ..lowering import Lowered
from ..nodes import overload_of, source_line
from .bucket_sizes import Buckets, Sizes, rounded
from .masked_program import MaskedProgram, MaskedPrograms
from .padded_tensors import enlarged, part_of_rows, strided, with_copies, without_padding
from .padding_proof import NotProved, Rows
from .row_proof import RowProof

_MOST_PLANS = 4096  # combinations of sizes, of which batches of graphs have a new one each


@dataclass
class _Plan:
    """The plan for one combination of sizes.

    Attributes:
        symbols: the sizes.
        larger: those for which it runs.
        rows: for each output, the rows of each padded size, with how many there are and how many are added.
        program: what runs, if it is not the graph's own executable.
        used: the larger sizes, if they are jaten's choice, which it may make tighter.
        fits: whether it is known that all sizes of the program are at most those of the larger one.
        padded: of inputs their larger shapes, and of numbers the larger ones, as they are met.
        cut: of outputs their shapes and strides.
    """

    symbols: Symbols
    larger: Symbols
    rows: list[list[tuple[Rows, int, int]]]
    program: MaskedProgram | None = None
    used: UsedSizes | None = None
    fits: bool = False
    padded: dict[int, Any] = field(default_factory=dict)
    cut: dict[int, Any] = field(default_factory=dict)


class Bucketed:
    """An executable whose sizes are rounded up, with the same call."""

    def __init__(self, gm: torch.fx.GraphModule, run: Executable, buckets: Buckets) -> None:
        self._run, self._log, self._seen = run, run.log, run.info.seen
        self._lowered = lowered = Lowered(gm, torch.get_default_dtype())
        self._values: list[Any] = [n.meta.get("val") for n in lowered.placeholders]
        self._index = {n: i for i, n in enumerate(lowered.placeholders)}
        self._varying = [
            i
            for i, (n, v) in enumerate(zip(lowered.placeholders, self._values, strict=True))
            if n not in run.info.numbers and has_symbolic_size(v)
        ]
        self._buckets, self._sizes = buckets, self._chosen(buckets)
        self._proof = RowProof(lowered, run.info.numbers)
        self._masked, self._history = MaskedPrograms(gm, run), SizeHistory(list(self._sizes))
        self._refused: dict[Any, str] = {}
        self._plans: dict[tuple[Any, ...], _Plan | None] = {}

    def __call__(self, args: list[Any]) -> list[Any]:
        key = tuple([a.shape if isinstance(a, torch.Tensor) else a for a in [args[i] for i in self._varying]])
        try:
            plan = self._plans[key]
        except KeyError:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._plan(args)
        if plan is None or (plan.program is not None and _must_be_exact()):
            return self._run(args)
        with torch.no_grad():
            given = args.copy()
            for i in self._varying:
                given[i] = self._padded(i, args[i], plan)
            is_random = plan.program is not None and plan.program.graph.random
            state = torch.get_rng_state() if is_random else None
            results = self._run(given) if plan.program is None else self._left_out(plan, plan.program, given)
            if results is None:
                if state is not None:  # the graph's own executable draws the numbers of this call
                    torch.set_rng_state(state)
                self._plans[key] = None
                return self._run(args)
            out = [self._cut(i, result, args, plan) for i, result in enumerate(results)]
        args.clear()
        if plan.used is not None and plan.used.is_due():
            self._tighten(plan)
        return out

    def _chosen(self, buckets: Buckets) -> dict[Any, Sizes | None]:
        """The symbols that are sizes of inputs, with the sizes to which each is rounded; None for jaten's choice."""
        values = [self._values[i] for i in self._varying]
        symbols = {
            s: None for v in values if isinstance(v, torch.Tensor) for size in v.shape for s in free_symbols(size)
        }
        if buckets.is_auto:
            return dict(symbols)
        each = {s: buckets.of_dim(self._log.dim_of(s)) for s in symbols}
        return {s: sizes for s, sizes in each.items() if sizes is not None}

    # Work at each call

    def _padded(self, i: int, given: Any, plan: _Plan) -> Any:
        value = self._values[i]
        if i not in plan.padded:
            is_tensor = isinstance(value, torch.Tensor)
            sizes = concretized(value.shape if is_tensor else [value], plan.larger)
            plan.padded[i] = sizes if is_tensor else sizes[0]
        if not isinstance(value, torch.Tensor):
            return plan.padded[i]
        return with_copies(given, plan.padded[i]) if plan.program is None else enlarged(given, plan.padded[i])

    def _left_out(self, plan: _Plan, program: MaskedProgram, given: list[Any]) -> list[Any] | None:
        """The results of a program for larger inputs; None if the graph's own executable has to run."""
        try:
            results = program(given, plan.symbols)
        except NotMasked as error:
            self._refuse(error)
            return None
        except Exception as error:
            if program.graph.is_of_value(error):  # the graph's own executable has words for the sizes that there are
                return None
            raise
        if not plan.fits:  # what is assumed of sizes is known when a program has been traced
            plan.fits = program.graph.fits(plan.symbols, plan.larger)
        return results if plan.fits else None

    def _cut(self, index: int, result: Any, args: list[Any], plan: _Plan) -> Any:
        node = self._lowered.outputs[index]
        if not isinstance(node, torch.fx.Node):
            return result
        if node in self._index:
            return args[self._index[node]]
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return concretize(value, plan.symbols) if isinstance(value, torch.SymInt) else result
        if index not in plan.cut:
            plan.cut[index] = [concretized(sizes, plan.symbols) for sizes in (value.shape, value.stride())]
        sizes, strides = plan.cut[index]
        is_seen = value.device.type != "jax" and (self._seen is None or index < self._seen)
        if plan.program is not None:
            result = without_padding(result, sizes, is_seen=is_seen)
        else:
            for rows, real, padded in reversed(plan.rows[index]):
                result = part_of_rows(result, rows, real, padded)
        return strided(result, sizes, strides) if is_seen else result

    # Work for new sizes

    def _plan(self, args: list[Any]) -> _Plan | None:
        symbols = symbols_of(self._values, args)
        self._history.meet({symbol: size for symbol, size in symbols.items() if symbol.is_symbol})
        if self._buckets.is_auto:
            return self._auto_plan(symbols)
        larger = self._rounded(symbols)
        if larger == symbols and not self._refused:
            return None
        plan = self._with_rows(symbols, larger)
        if self._refused and not self._masked.refused:
            return self._masked_plan(symbols, larger) or plan
        return plan

    def _rounded(self, symbols: Symbols) -> Symbols:
        """The sizes of the user's choice."""
        larger = dict(symbols)
        for symbol, sizes in self._sizes.items():
            if sizes is not None and symbols[symbol]:
                larger[symbol] = rounded(symbols[symbol], sizes)
                if not isinstance(sizes, str) and symbols[symbol] > sizes[-1]:
                    self._log.above(symbol, symbols[symbol])
        return larger

    def _with_rows(self, symbols: Symbols, larger: Symbols) -> _Plan | None:
        """The plan for those sizes for which copies of rows may be added; notes why they may not be for others."""
        sizes = dict(symbols)
        rows: list[list[tuple[Rows, int, int]]] = [[] for _ in self._lowered.outputs]
        for symbol in self._sizes:
            real, padded = symbols[symbol], larger[symbol]
            if padded == real or symbol in self._refused:
                continue
            try:
                states = self._proof.rows(symbol, sizes, padded)
            except (NotProved, JatenError) as error:
                self._refused[symbol] = self._reason(error)
                continue
            sizes[symbol] = padded
            for found, state in zip(rows, states, strict=True):
                if state is not None:
                    found.append((state, real, padded))
        return _Plan(symbols, sizes, rows) if sizes != symbols else None

    def _masked_plan(self, symbols: Symbols, larger: Symbols) -> _Plan | None:
        """The plan for the user's choice of sizes, with a program that leaves out what is added."""
        open_sizes = [
            symbol
            for symbol, sizes in self._sizes.items()
            if symbols[symbol] > 1 and (isinstance(sizes, str) or sizes is None or symbols[symbol] <= sizes[-1])
        ]
        classes = {s: (number, larger[s]) for s, number in self._history.classes.items()}
        if not open_sizes or _is_over_devices():
            return None
        try:
            program = self._masked.program(open_sizes, symbols, classes)
        except NotMasked as error:
            self._refuse(error)
            return None
        return _Plan(symbols, larger, [], program) if program.graph.fits(symbols, larger) else None

    def _auto_plan(self, symbols: Symbols) -> _Plan | None:
        """The plan for sizes of jaten's choice: those that change are rounded, if they can be."""
        changing = self._history.changing
        if not changing or self._masked.refused or _is_over_devices() or any(symbols[s] < 2 for s in changing):
            return None
        try:
            program = self._masked.program(changing, symbols, self._history.classes)
        except NotMasked as error:
            self._refuse(error)
            return None
        given, made = program.graph.named(symbols), [used.sizes for used in program.made]
        named, is_new = larger_sizes(program.graph.program, given, made)
        larger = program.graph.with_sizes(symbols, named)
        if not program.graph.fits(symbols, larger):
            return None
        if is_new:
            program.made.append(UsedSizes(named))
            self._log.rounded({s: (symbols[s], larger[s]) for s in changing})
        used = next(used for used in program.made if used.sizes == named)
        used.meet(given)
        return _Plan(symbols, larger, [], program, used)

    def _tighten(self, plan: _Plan) -> None:
        """Has later calls run for smaller sizes, if the calls so far would have fitted them."""
        program = plan.program
        assert program is not None and plan.used is not None
        tight = plan.used.tighter(program.graph.program)
        if tight is not None:
            program.made.insert(0, UsedSizes(tight))
            self._plans.clear()
            larger = program.graph.with_sizes(plan.symbols, tight)
            self._log.tightened({s: larger[s] for s in self._history.changing})

    def _refuse(self, error: NotMasked) -> None:
        """Notes, and tells, that sizes are not rounded."""
        self._masked.refused = reason = self._reason(error)
        if self._buckets.is_auto:
            self._log.exact(reason)
        for symbol, of_rows in self._refused.items():
            self._log.refused(self._log.name_of(symbol), f"{of_rows}; {reason}")

    def _reason(self, error: Exception) -> str:
        """The reason of an error, with the operator and the line of the user's program."""
        found = re.findall(r"node(\d+)", getattr(error, "scopes", ""))
        if not found:
            return str(error)
        node = self._lowered.nodes[int(found[0])]
        return f"jaten::{overload_of(node.target)} {error}{source_line(node)}"


def bucketed(gm: torch.fx.GraphModule, run: Executable, buckets: Buckets) -> Callable[[list[Any]], list[Any]]:
    """The executable of a graph, with dynamic sizes rounded up."""
    values = [n.meta.get("val") for n in gm.graph.find_nodes(op="placeholder")]
    if buckets.is_off or not any(map(has_symbolic_size, values)) or not _are_known(values):
        return run
    run.log.advises = buckets.is_auto
    return Bucketed(gm, run, buckets)


def _are_known(values: list[Any]) -> bool:
    """True if each symbol in the sizes of inputs is one of these, or an input, by itself."""
    sizes = [
        s for v in values for s in (v.shape if isinstance(v, torch.Tensor) else [v]) if isinstance(s, torch.SymInt)
    ]
    alone = {s.node.expr for s in sizes if s.node.expr.is_symbol}
    return all(free_symbols(s) <= alone for s in sizes)


def _is_over_devices() -> bool:
    return bool(partitioned.MET)


def _must_be_exact() -> bool:
    """True if someone looks at all values: what is added may be no number."""
    config: Any = jax.config
    return torch.is_anomaly_enabled() or config.jax_debug_nans or config.jax_debug_infs
