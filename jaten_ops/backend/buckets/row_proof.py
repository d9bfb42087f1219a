"""The proof for a graph that copies of its first row may be added: `padding_proof`, of two traces of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr
from torch.fx.experimental.symbolic_shapes import free_symbols

from jaten_ops.arrays import bridge
from jaten_ops.xla import x64

from ..layout import concretize
from ..lowering import Lowered
from ..passes.traced_ints import SPEC, from_operand
from . import padding_programs, padding_rules  # noqa: F401  # register the rules
from .padding_proof import NotProved, Rows, State, Walk, without_fact


class RowProof:
    """The proofs for one graph.

    Args:
        lowered: the graph.
        numbers: the inputs that are handed over as numbers.
    """

    def __init__(self, lowered: Lowered, numbers: frozenset[torch.fx.Node]) -> None:
        self._lowered, self._numbers = lowered, numbers
        self._values: list[Any] = [n.meta.get("val") for n in lowered.placeholders]
        self._index = {n: i for i, n in enumerate(lowered.placeholders)}
        self._traces: dict[tuple[int, ...], Any] = {}

    def rows(self, symbol: Any, sizes: dict[Any, int], padded: int) -> list[State]:
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


def _spec(value: torch.Tensor, sizes: dict[Any, int]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct([concretize(s, sizes) for s in value.shape], bridge.to_numpy_dtype(value.dtype))
