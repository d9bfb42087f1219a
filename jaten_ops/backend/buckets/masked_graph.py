"""A graph with open sizes as one JAX function for all of them: it takes larger arrays, and the sizes that there are.

The graph is traced once, with symbolic dimensions. `masked_run` runs the trace on the larger arrays. Reductions leave
out what is none of the graph's, so that no result depends on it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import export
from jax.extend import core

from jaten_ops.arrays import bridge
from jaten_ops.kernel_base import checks
from jaten_ops.masking.masked_values import NotMasked
from jaten_ops.masking.open_program import LARGEST_SIZE, OpenProgram
from jaten_ops.registry import external_ops
from jaten_ops.xla import x64

from ..layout import concretize, symbols_of
from ..lowering import Lowered
from ..nodes import overload_of


class MaskedGraph(Lowered):
    """A graph as a JAX function of larger arrays, with the call of `Lowered`.

    Args:
        gm: the graph.
        default_float: the dtype of results that none of its operands decides.
        numbers: the inputs that are handed over as numbers.
        groups: the symbols whose sizes are open, those with equal sizes together.
        known: the values of all other symbols.

    Attributes:
        groups: those.
        sizes: an input for each group, behind the graph's: its size.
        program: the traced graph.

    Raises:
        NotMasked: it cannot be run so.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        default_float: torch.dtype,
        numbers: frozenset[torch.fx.Node],
        groups: Sequence[frozenset[Any]],
        known: Mapping[Any, int],
    ) -> None:
        super().__init__(gm, default_float)
        if foreign := _foreign(gm):
            raise NotMasked(f"calls {foreign}, which may do something else for other sizes")
        self._values = [n.meta.get("val") for n in self.placeholders]
        self._inputs = [
            n for n, v in zip(self.placeholders, self._values, strict=True)
            if isinstance(v, torch.Tensor) or (n in numbers and any(user.op != "output" for user in n.users))
        ]  # fmt: skip
        self._numbers, self.groups = numbers, groups
        self._open = dict(zip([f"open{i}" for i in range(len(groups))], groups, strict=True))
        self._dims = {**known, **self._dimensions()}
        self._wanted = [n for n in dict.fromkeys(self.outputs) if self._is_result(n)]
        self.program = OpenProgram(self._trace())
        scratch = torch.fx.Graph()
        self.sizes = [scratch.placeholder(name) for name in self._open]
        for node in self.sizes:
            scratch.call_function(operator.pos, (node,))  # a number without users would not be handed over
        self._own = self.placeholders
        self.placeholders = [*self._own, *self.sizes]

    def _dimensions(self) -> dict[Any, Any]:
        """The symbolic dimension of each symbol."""
        bounds = {}
        for value in self._values:
            for size in value.shape if isinstance(value, torch.Tensor) else [value]:
                if isinstance(size, torch.SymInt):
                    ranges = size.node.shape_env.var_to_range
                    bounds.update({s: ranges[s] for s in size.node.expr.free_symbols if s in ranges})
        constraints = []
        for name, group in self._open.items():
            given = [bounds[s] for s in group if s in bounds]
            constraints.append(f"{name} >= {max([2, *(int(b.lower) for b in given if b.lower > 2)])}")
            constraints.append(
                f"{name} <= {min([LARGEST_SIZE, *(int(b.upper) for b in given if b.upper < LARGEST_SIZE)])}"
            )
        made = export.symbolic_shape(", ".join(self._open), constraints=constraints)
        return {s: dim for dim, group in zip(made, self._open.values(), strict=True) for s in group}

    def _is_result(self, node: Any) -> bool:
        is_node = isinstance(node, torch.fx.Node) and node not in self.placeholders
        return is_node and isinstance(node.meta.get("val"), torch.Tensor)

    def _trace(self) -> core.ClosedJaxpr:
        """The graph as a jaxpr with open sizes; the name of each step gives its node."""
        if any(isinstance(v, torch.SymFloat | torch.SymBool) for v in self._values):
            raise NotMasked("an input is a number that is no int")
        self._conditions: list[Exception] = []

        def graph(arrays: list[Any], *seeds: Any) -> list[Any]:
            values, seed = dict(zip(self._inputs, arrays, strict=True)), seeds[0] if seeds else None
            results, conditions = Lowered.__call__(self, fixed | values, seed, self._wanted, scoped=True)
            self._conditions[:] = conditions.errors
            return [*results, *conditions.values]

        with x64.tracing():
            try:
                others = [n for n in self.placeholders if n not in self._inputs]
                fixed = {n: concretize(n.meta.get("val"), self._dims) for n in others}
                seeds = [jax.ShapeDtypeStruct((), np.dtype("int64"))] if self.random else []
                traced = jax.make_jaxpr(graph)(list(map(self._spec, self._inputs)), *seeds)
                said = [tuple(self._spec(n).shape) for n in self._wanted]
            except Exception as error:  # kernels raise any for a size that is open
                raise NotMasked(f"cannot be traced with open sizes: {str(error).partition(chr(10))[0]}") from error
        for node, shape, variable in zip(self._wanted, said, traced.jaxpr.outvars, strict=False):
            if variable.aval.shape != shape:
                raise NotMasked(f"{node.target} gives the sizes {variable.aval.shape}, which may not be {shape}")
        return traced

    def _spec(self, node: torch.fx.Node) -> jax.ShapeDtypeStruct:
        if node in self._numbers:
            return jax.ShapeDtypeStruct((), np.dtype("int64"), weak_type=True)
        value = node.meta["val"]
        shape = [concretize(s, self._dims) for s in value.shape]
        return jax.ShapeDtypeStruct(shape, bridge.to_numpy_dtype(value.dtype))

    def __call__(
        self, values: Mapping[torch.fx.Node, Any], seed: Any, wanted: Sequence[torch.fx.Node], **_: Any
    ) -> Any:
        larger = self.named(self._symbols(values))
        given = dict(zip(self._open, [values[n] for n in self.sizes], strict=True))
        seeds = [seed] if self.random else []
        arrays = self.program([*(values[n] for n in self._inputs), *seeds], larger, given)
        found = dict(zip(self._wanted, arrays, strict=False))
        conditions = checks.Conditions(arrays[len(self._wanted) :], list(self._conditions))
        return [found[n] for n in wanted], conditions

    def _symbols(self, values: Mapping[torch.fx.Node, Any]) -> dict[Any, int]:
        given = [n for n in self._own if n in values and n not in self._numbers]
        return symbols_of([n.meta["val"] for n in given], [values[n] for n in given])

    def named(self, symbols: Mapping[Any, int]) -> dict[str, int]:
        """The size of each group."""
        return {name: next(symbols[s] for s in group if s in symbols) for name, group in self._open.items()}

    def fits(self, given: Mapping[Any, int], larger: Mapping[Any, int]) -> bool:
        """True if all sizes of the program are at most those of the larger one."""
        named = self.named(larger)
        return max(named.values()) <= LARGEST_SIZE and self.program.fits(self.named(given), named)

    def with_sizes(self, symbols: Mapping[Any, int], named: Mapping[str, int]) -> dict[Any, int]:
        """The symbols' values, with other sizes of the groups."""
        return {**symbols, **{s: named[name] for name, group in self._open.items() for s in group}}

    def is_of_value(self, error: Exception) -> bool:
        """True for an error that a value of a call may have raised."""
        return any(error.args == e.args for e in self._conditions)


def _foreign(gm: torch.fx.GraphModule) -> str:
    """An operator of a user's, or one that a user has replaced, in a graph or those inside it; empty without."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]
    names = [overload_of(n.target) for graph in graphs for n in graph.nodes if n.op == "call_function"]
    return next((name for name in names if name is not None and external_ops.is_foreign(name)), "")
