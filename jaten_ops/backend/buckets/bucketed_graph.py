"""The option `buckets`: a graph runs with its dynamic sizes rounded up, so that it compiles once for many of them.

Rows are added to the inputs, copies of the first, and cut off the outputs. It is done for the sizes for which
`padding_proof` proves that this changes nothing; of the others it is said why not, and each of them compiles as usual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr
from torch.fx.experimental.symbolic_shapes import free_symbols

from jaten_ops.arrays import bridge, carrier
from jaten_ops.errors import JatenError, UnsupportedInputError
from jaten_ops.xla import x64
from jaten_ops.xla.x64 import Enabled

from ..compile_log import GraphLog
from ..executable import Executable
from ..layout import concretize, has_symbolic_size, symbols_of
from ..lowering import Lowered
from ..nodes import overload_of, source_line
from ..passes.traced_ints import SPEC, from_operand
from . import padding_programs, padding_rules  # noqa: F401  # register the rules
from .padding_proof import NotProved, Rows, State, Walk, without_fact

POWERS = "powers of two"
Sizes = Sequence[int] | str


class Buckets:
    """The option `buckets`: sizes for all dimensions of the inputs, or for some.

    Args:
        option: sizes, or "powers of two", or a dict of these by the number of the dimension in the inputs.

    Raises:
        UnsupportedInputError: it is none of these.
    """

    def __init__(self, option: Any) -> None:
        self._by_dim: dict[int, Sizes] | None = None
        self._all: Sizes | None = None
        if isinstance(option, Mapping):
            self._by_dim = {int(d): _checked(sizes) for d, sizes in option.items()}
        else:
            self._all = _checked(option)

    def of_dim(self, dim: int | None) -> Sizes | None:
        if self._by_dim is None or dim is None:
            return self._all
        return self._by_dim.get(dim)


def _checked(sizes: Any) -> Sizes:
    if sizes == POWERS:
        return POWERS
    if isinstance(sizes, Sequence) and sizes and all(isinstance(s, int) and s > 0 for s in sizes):
        return sorted(sizes)
    raise UnsupportedInputError("the option buckets", repr(sizes), f"sizes, as [8, 16, 32], or {POWERS!r}")


def rounded(size: int, sizes: Sizes) -> int:
    """The size of the bucket; a size above the largest bucket is its own."""
    if isinstance(sizes, str):
        return 1 << (size - 1).bit_length() if size else 0
    return next((s for s in sizes if s >= size), size)


@dataclass
class _Plan:
    """The plan for one combination of sizes: the inputs that are padded, and the outputs from which rows are removed.

    Attributes:
        rows: for each output, the rows of each padded size, with how many there are and how many are added.
    """

    symbols: dict[Any, int]
    sizes: dict[Any, int]
    rows: list[list[tuple[Rows, int, int]]]


class Bucketed:
    """An executable whose sizes are rounded up, with the same call."""

    def __init__(self, gm: torch.fx.GraphModule, run: Executable, buckets: Buckets) -> None:
        self._run, self._log, self._seen = run, run.log, run.info.seen
        self._lowered = lowered = Lowered(gm, torch.get_default_dtype())
        self._values: list[Any] = [n.meta.get("val") for n in lowered.placeholders]
        self._numbers = run.info.numbers
        self._index = {n: i for i, n in enumerate(lowered.placeholders)}
        self._varying = [
            i
            for i, (n, v) in enumerate(zip(lowered.placeholders, self._values, strict=True))
            if n not in self._numbers and has_symbolic_size(v)
        ]
        self._sizes = self._chosen(buckets)
        self._refused: set[Any] = set()
        self._plans: dict[tuple[Any, ...], _Plan | None] = {}
        self._traces: dict[tuple[int, ...], Any] = {}

    def __call__(self, args: list[Any]) -> list[Any]:
        key = tuple([a.shape if isinstance(a, torch.Tensor) else a for a in [args[i] for i in self._varying]])
        if key not in self._plans:
            self._plans[key] = self._plan(args)
        plan = self._plans[key]
        if plan is None:
            return self._run(args)
        with torch.no_grad():
            given = args.copy()
            for i in self._varying:
                given[i] = self._with_rows(args[i], self._values[i], plan)
            results = self._run(given)
            out = [self._cut(i, result, args, plan) for i, result in enumerate(results)]
        args.clear()
        return out

    def _chosen(self, buckets: Buckets) -> dict[Any, Sizes]:
        """The symbols that are sizes of inputs, with the sizes to which each is rounded."""
        values = [self._values[i] for i in self._varying]
        symbols = {
            s: None for v in values if isinstance(v, torch.Tensor) for size in v.shape for s in free_symbols(size)
        }
        each = {s: buckets.of_dim(self._log.dim_of(s)) for s in symbols}
        return {s: sizes for s, sizes in each.items() if sizes is not None}

    # Work at each call

    def _with_rows(self, given: Any, value: Any, plan: _Plan) -> Any:
        if not isinstance(value, torch.Tensor):
            return concretize(value, plan.sizes)
        for dim, size in enumerate(value.shape):
            more = concretize(size, plan.sizes) - given.shape[dim]
            if more and value.device.type == "jax":
                array = carrier.unwrap(given)
                given = carrier.wrap(_on_jax(_repeat_first, array, dim, more))
            elif more:
                first = given.narrow(dim, 0, 1)
                given = torch.cat((given, first.expand(*given.shape[:dim], more, *given.shape[dim + 1 :])), dim)
        return given

    def _cut(self, index: int, result: Any, args: list[Any], plan: _Plan) -> Any:
        node = self._lowered.outputs[index]
        if not isinstance(node, torch.fx.Node):
            return result
        if node in self._index:
            return args[self._index[node]]
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return concretize(value, plan.symbols) if isinstance(value, torch.SymInt) else result
        for rows, real, padded in reversed(plan.rows[index]):
            if value.device.type == "jax":
                array = carrier.unwrap(result)
                result = carrier.wrap(_on_jax(_first_rows, array, rows, real, padded))
            else:
                result = _first_rows(result, rows, real, padded)
        is_seen = value.device.type != "jax" and (self._seen is None or index < self._seen)
        return _strided(result, value, plan.symbols) if is_seen else result

    # Work for new sizes

    def _plan(self, args: list[Any]) -> _Plan | None:
        symbols = symbols_of(self._values, args)
        sizes = dict(symbols)
        rows: list[list[tuple[Rows, int, int]]] = [[] for _ in self._lowered.outputs]
        for symbol, of_user in self._sizes.items():
            real = symbols[symbol]
            padded = rounded(real, of_user)
            if not isinstance(of_user, str) and real > of_user[-1]:
                self._log.above(symbol, real)
            if padded == real or not real or symbol in self._refused:
                continue
            try:
                states = self._prove(symbol, sizes, padded)
            except (NotProved, JatenError) as error:
                self._refused.add(symbol)
                self._log.refused(self._log.name_of(symbol), self._reason(error))
                continue
            sizes[symbol] = padded
            for found, state in zip(rows, states, strict=True):
                if state is not None:
                    found.append((state, real, padded))
        return _Plan(symbols, sizes, rows) if sizes != symbols else None

    def _prove(self, symbol: Any, sizes: dict[Any, int], padded: int) -> list[State]:
        """The rows of each output with a larger size of one symbol."""
        inputs = [self._rows_in(v, symbol) for v, n in self._tensors()]
        small, large = (self._trace(s) for s in (sizes, sizes | {symbol: padded}))
        inputs += [None] * (len(large.jaxpr.invars) - len(inputs))
        found = map(without_fact, Walk(sizes[symbol], padded)(small, large, inputs))
        return [next(found) if self._is_array(n) else None for n in self._lowered.outputs]

    def _tensors(self) -> list[tuple[Any, torch.fx.Node]]:
        pairs = zip(self._values, self._lowered.placeholders, strict=True)
        return [(v, n) for v, n in pairs if isinstance(v, torch.Tensor) or n in self._numbers]

    def _is_array(self, node: Any) -> bool:
        is_result = isinstance(node, torch.fx.Node) and node not in self._index
        return is_result and isinstance(node.meta.get("val"), torch.Tensor)

    def _rows_in(self, value: Any, symbol: Any) -> State:
        sizes = list(value.shape) if isinstance(value, torch.Tensor) else []
        dims = [d for d, size in enumerate(sizes) if symbol in free_symbols(size)]
        if len(dims) > 1 or any(str(sizes[d]) != str(symbol) for d in dims):
            raise NotProved(f"an input has the sizes {sizes}")
        return Rows(dims[0]) if dims else None

    def _trace(self, sizes: dict[Any, int]) -> Any:
        """The graph as a jaxpr, for given sizes; the name of each step gives its node."""
        key = tuple(sizes.values())
        if key in self._traces:
            return self._traces[key]
        lowered, tensors = self._lowered, self._tensors()
        if any(isinstance(v, torch.SymFloat | torch.SymBool) for v in self._values):
            raise NotProved("an input is a number that is no int")
        fixed = {
            n: concretize(v, sizes)
            for v, n in zip(self._values, lowered.placeholders, strict=True)
            if not isinstance(v, torch.Tensor) and n not in self._numbers
        }
        wanted = [n for n in lowered.outputs if self._is_array(n)]

        def graph(arrays: list[Any], seed: Any) -> list[Any]:
            pairs = zip(tensors, arrays, strict=True)
            values = {n: from_operand(a) if n in self._numbers else a for (_, n), a in pairs}
            results, conditions = lowered(fixed | values, seed, wanted, scoped=True)
            return [*results, *conditions.values]

        specs = [SPEC if n in self._numbers else _spec(v, sizes) for v, n in tensors]
        with x64.tracing():
            seed = jax.ShapeDtypeStruct((), np.dtype("int64")) if lowered.random else None
            traced = jax.make_jaxpr(graph)(specs, seed)
            used, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
            traced = core.ClosedJaxpr(used, traced.consts)
        for old in list(self._traces)[:-7]:
            self._traces.pop(old, None)  # another thread may have done it
        self._traces[key] = traced
        return traced

    def _reason(self, error: Exception) -> str:
        """The reason of an error, with the operator and the line of the user's program."""
        found = re.findall(r"node(\d+)", getattr(error, "scopes", ""))
        if not found:
            return str(error)
        node = self._lowered.nodes[int(found[0])]
        return f"jaten::{overload_of(node.target)} {error}{source_line(node)}"


def bucketed(
    gm: torch.fx.GraphModule, run: Callable[[list[Any]], list[Any]], buckets: Buckets
) -> Callable[[list[Any]], list[Any]]:
    """The executable of a graph, with dynamic sizes rounded up."""
    if not isinstance(run, Executable):
        GraphLog(gm).refused("size", "some depend on values")
        return run
    if not any(has_symbolic_size(n.meta.get("val")) for n in gm.graph.nodes if n.op == "placeholder"):
        return run
    run.log.advises = False
    return Bucketed(gm, run, buckets)


def _spec(value: torch.Tensor, sizes: dict[Any, int]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct([concretize(s, sizes) for s in value.shape], bridge.to_numpy_dtype(value.dtype))


def _on_jax(fn: Callable[..., jax.Array], *args: Any) -> jax.Array:
    with Enabled():
        return fn(*args)


def _repeat_first(x: jax.Array, dim: int, more: int) -> jax.Array:
    first = x[(slice(None),) * dim + (slice(1),)]
    return jnp.concatenate([x, jnp.repeat(first, more, dim)], dim)


def _first_rows(x: Any, rows: Rows, real: int, padded: int) -> Any:
    """A tensor or an array without the added rows."""
    axis, outer = rows.axis, rows.outer or 1
    inner = rows.inner or x.shape[axis] // padded
    if outer == 1:
        return x[(slice(None),) * axis + (slice(real * inner),)]
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = x.reshape((*before, outer, padded, inner, *after))
    x = x[(slice(None),) * (axis + 1) + (slice(real),)]
    return x.reshape((*before, outer * real * inner, *after))


def _strided(result: torch.Tensor, value: torch.Tensor, symbols: dict[Any, int]) -> torch.Tensor:
    """The tensor with the graph's strides, which depend on the number of rows."""
    sizes, strides = ([concretize(s, symbols) for s in of] for of in (value.shape, value.stride()))
    pairs = zip(sizes, strides, result.stride(), strict=True)
    if all(size == 1 or want == got for size, want, got in pairs):
        return result
    first = tuple(slice(0, None if stride else 1) for stride in strides)
    part = result[first]
    return torch.empty_strided(part.shape, strides, dtype=result.dtype).copy_(part).as_strided(sizes, strides)
