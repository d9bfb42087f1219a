"""A graph with open sizes as one JAX function for all of them: it takes larger arrays, and the sizes that there are.

The graph is traced once, with symbolic dimensions. `masked_run` runs the trace on the larger arrays. Reductions leave
out what is none of the graph's, so that no result depends on it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import export
from jax.export import is_symbolic_dim
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from jaten_ops.arrays import bridge
from jaten_ops.kernel_base import checks
from jaten_ops.registry import external_ops
from jaten_ops.xla import x64

from ..layout import concretize, symbols_of
from ..lowering import Lowered
from ..nodes import overload_of
from . import masked_indices, masked_places, masked_programs, masked_rules  # noqa: F401  # register the rules
from .masked_run import MaskedRun, programs_of
from .masked_values import NotMasked, PaddedSizes, padded_array, size_value

_RARELY = 2**31  # torch's bound of a size that has none is far above
_PER_PRODUCT = 0.1  # the time of a product and a sum, in that of an operation on an element


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
        assumed: expressions whose values must not be above those for the larger sizes, as text.

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
        if self.random:
            raise NotMasked("draws random numbers, and would draw others")
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
        self._traced = self._trace()
        scratch = torch.fx.Graph()
        self.sizes = [scratch.placeholder(name) for name in self._open]
        for node in self.sizes:
            scratch.call_function(operator.pos, (node,))  # a number without users would not be handed over
        self._own, self.assumed = self.placeholders, frozenset(_open_sizes(self._traced.jaxpr))
        self.placeholders = [*self._own, *self.sizes]
        self._work = _work_of(self._traced.jaxpr)

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
            upper = [int(b.upper) for b in given if b.upper < _RARELY]
            constraints += [f"{name} <= {min(upper)}"] if upper else []
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

        def graph(arrays: list[Any]) -> list[Any]:
            values = dict(zip(self._inputs, arrays, strict=True))
            results, conditions = Lowered.__call__(self, fixed | values, None, self._wanted, scoped=True)
            self._conditions[:] = conditions.errors
            return [*results, *conditions.values]

        with x64.tracing():
            try:
                others = [n for n in self.placeholders if n not in self._inputs]
                fixed = {n: concretize(n.meta.get("val"), self._dims) for n in others}
                traced = jax.make_jaxpr(graph)(list(map(self._spec, self._inputs)))
                said = [tuple(self._spec(n).shape) for n in self._wanted]
            except Exception as error:  # kernels raise any for a size that is open
                raise NotMasked(f"cannot be traced with open sizes: {error}") from error
        for node, shape, variable in zip(self._wanted, said, traced.jaxpr.outvars, strict=False):
            if variable.aval.shape != shape:
                raise NotMasked(f"{node.target} gives the sizes {variable.aval.shape}, which may not be {shape}")
        used, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
        return core.ClosedJaxpr(used, traced.consts)

    def _spec(self, node: torch.fx.Node) -> jax.ShapeDtypeStruct:
        if node in self._numbers:
            return jax.ShapeDtypeStruct((), np.dtype("int64"), weak_type=True)
        value = node.meta["val"]
        shape = [concretize(s, self._dims) for s in value.shape]
        return jax.ShapeDtypeStruct(shape, bridge.to_numpy_dtype(value.dtype))

    def __call__(
        self, values: Mapping[torch.fx.Node, Any], seed: Any, wanted: Sequence[torch.fx.Node], **_: Any
    ) -> Any:
        sizes = PaddedSizes(
            self.named(self._symbols(values)), dict(zip(self._open, [values[n] for n in self.sizes], strict=True))
        )
        run = MaskedRun(sizes)
        pairs = zip(self._inputs, self._traced.jaxpr.invars, strict=True)
        try:
            results = run(self._traced, [run.masks.of(values[n], v.aval.shape) for n, v in pairs])
            arrays = [padded_array(run.masks.all_leading(r)) for r in results]
        except NotMasked:
            raise
        except Exception as error:  # of JAX, for sizes that are larger
            raise NotMasked(f"cannot be traced with larger sizes: {error}") from error
        self.assumed |= sizes.assumed
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
        given, larger = self.named(given), self.named(larger)
        return all(size_value(size, given) <= size_value(size, larger) for size in self.assumed)

    def is_of_value(self, error: Exception) -> bool:
        """True for an error that a value of a call may have raised."""
        return any(error.args == e.args for e in self._conditions)

    def work(self, symbols: Mapping[Any, int]) -> float:
        """An estimate of the work of the program, in operations on an element."""
        named = self.named(symbols)
        return sum(weight * size_value(size, named) for size, weight in self._work.items())


def _open_sizes(jaxpr: Any) -> Iterator[str]:
    """The open sizes of a program's arrays, as text."""
    for variable in (*jaxpr.invars, *(v for equation in jaxpr.eqns for v in equation.outvars)):
        yield from (str(size) for size in getattr(variable.aval, "shape", ()) if is_symbolic_dim(size))
    for equation in jaxpr.eqns:
        for inner in programs_of(equation):
            yield from _open_sizes(inner)


def _foreign(gm: torch.fx.GraphModule) -> str:
    """An operator of a user's, or one that a user has replaced, in a graph or those inside it; empty without."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]
    names = [overload_of(n.target) for graph in graphs for n in graph.nodes if n.op == "call_function"]
    return next((name for name in names if name is not None and external_ops.is_foreign(name)), "")


def _work_of(jaxpr: Any) -> dict[str, float]:
    """The work of a program by sizes, as text."""
    found: dict[str, float] = {}
    for equation in jaxpr.eqns:
        for inner in programs_of(equation):
            for size, weight in _work_of(inner).items():
                found[size] = found.get(size, 0) + weight
        if not equation.outvars:  # what prints
            continue
        size, weight = math.prod(equation.outvars[0].aval.shape), 1.0
        if equation.primitive.name == "dot_general":
            shape, ((contracted, _), _) = equation.invars[0].aval.shape, equation.params["dimension_numbers"]
            size, weight = math.prod([size, *(shape[d] for d in contracted)]), _PER_PRODUCT
        found[str(size)] = found.get(str(size), 0) + weight
    return found
