"""Torch functions of arrays with symbolic dimensions, as `jax.export` traces them.

torch captures the function with symbolic sizes, and the graph is traced by JAX with the dimensions in their place. What
torch had to assume of the sizes must hold of all values of the dimensions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import sympy
import torch
from jax.export import is_symbolic_dim
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    ShapeEnv,
    StatelessSymbolicContext,
)

from jaten_ops.arrays import carrier, seeds
from jaten_ops.arrays.observers import Observer, observed_by
from jaten_ops.backend import pipeline
from jaten_ops.backend.layout import evaluated_size
from jaten_ops.backend.lowering import Lowered
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.ops import symbolic_sizes
from jaten_ops.tensor.operand_values import is_traced
from jaten_ops.tensor.tensor import Tensor, array_of
from jaten_ops.xla.x64 import tracing

from .run_context import inside
from .torch_autograd import FlatFunction, pulled_back

_WHAT = "a torch function of arrays with symbolic dimensions"


def call_open(fn: FlatFunction, arrays: Sequence[Any], key: jax.Array | None) -> list[Any]:
    """A torch function's results for arrays that JAX traces, some of whose dimensions are symbolic.

    Its gradients are torch's, by `jax.vjp`; forward-mode derivatives raise JAX's error.

    Raises:
        UnsupportedInputError: the function holds only for some values of the dimensions.
    """
    with tracing():
        return list(_differentiable(fn, key)(*arrays))


def _differentiable(fn: FlatFunction, key: jax.Array | None) -> Callable[..., tuple[Any, ...]]:
    @jax.custom_vjp
    def run(*arrays: Any) -> tuple[Any, ...]:
        return tuple(_evaluated(fn, arrays, key))

    def forward(*arrays: Any) -> tuple[Any, Any]:
        return run(*arrays), arrays

    def backward(arrays: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        wrt, by = (tuple([i for i, a in enumerate(of) if _has_gradient(a)]) for of in (arrays, cotangents))
        pull = _differentiable(pulled_back(fn, wrt, by), key)
        gradients = dict(zip(wrt, pull(*arrays, *(cotangents[i] for i in by)), strict=True))
        return tuple([gradients.get(i) for i in range(len(arrays))])

    run.defvjp(forward, backward)
    return run


def _has_gradient(array: Any) -> bool:
    return jax.numpy.issubdtype(array.dtype, jax.numpy.inexact)


def _evaluated(fn: FlatFunction, arrays: Sequence[Any], key: jax.Array | None) -> list[Any]:
    captured = _captured(fn, arrays)
    lowered = captured.lowered
    values = dict(zip(lowered.placeholders, [*arrays, *map(array_of, captured.held)], strict=True))
    with tracing():
        seed = seeds.SeedsOfKey(key).at(0).astype("int64") if lowered.random else None
        results, _ = lowered(values, seed, lowered.outputs)
    return list(results)


@dataclass(frozen=True)
class _Captured:
    """A function's graph, and the tensors that it reads beside its operands."""

    lowered: Lowered
    held: list[Tensor]


_OF_VALUES = (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    DataDependentOutputException,
    DynamicOutputShapeException,
)


def _captured(fn: FlatFunction, arrays: Sequence[Any]) -> _Captured:
    try:
        return _capture(fn, arrays)
    except _OF_VALUES as error:
        raise UnsupportedInputError(
            _WHAT, f"one whose course or sizes depend on values ({str(error).partition(chr(10))[0]})",
            "one that does not, but uses torch.where or torch.cond",
        ) from error  # fmt: skip


def _capture(fn: FlatFunction, arrays: Sequence[Any]) -> _Captured:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    examples = _Examples([size for a in arrays for size in a.shape])
    with inside(None, arrays), torch.device("jax"):  # fake tensors of the CPU are no constants
        operands = [_fake(mode, tuple(map(examples.size, a.shape)), a) for a in arrays]
        dimensions = _dimensions(operands, arrays)  # now: torch replaces symbols that turn out to be equal
        lifting = _Lifting(mode)
        with enable_python_dispatcher(), mode, observed_by(lifting):
            fn([_wrapped(c) for c in operands])  # finds the tensors around it
        held = list(lifting.found.values())

        def of_carriers(*carriers: torch.Tensor) -> list[torch.Tensor]:
            own: list[torch.Tensor] = [_wrapped(c) for c in carriers]
            inner = _Lifting(mode, zip([tensor for tensor, _ in held], own[len(operands) :], strict=True))
            with observed_by(inner):
                results = fn(own[: len(operands)])
            return [_carrier_of(r.detach()) for r in results]

        given = [*operands, *(_carrier_of(fake) for _, fake in held)]
        with enable_python_dispatcher(), mode:
            graph = make_fx(of_carriers)(*given)
            graph = make_fx(torch.func.functionalize(graph, remove="mutations"))(*given)
    _require_assumptions(env, dimensions)
    _without_writes(graph, len(operands))
    pipeline.run_on_functional(graph)
    return _Captured(Lowered(graph, torch.get_default_dtype()), [tensor for tensor, _ in held])


def _without_writes(graph: torch.fx.GraphModule, operands: int) -> None:
    """Takes out the writes to operands, of which a function has copies."""
    inputs = graph.graph.find_nodes(op="placeholder")
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] not in inputs[:operands]:
            raise UnsupportedInputError(
                _WHAT, "one that writes to a tensor that is not an argument",
                "one that takes the tensor as an argument and returns its new value",
            )  # fmt: skip
        node.replace_all_uses_with(node.args[1])
        graph.graph.erase_node(node)


# Tensors without values


def _fake(mode: FakeTensorMode, shape: tuple[int, ...], array: Any) -> torch.Tensor:
    open_dims = [DimDynamic.DUCK if is_symbolic_dim(size) else DimDynamic.STATIC for size in array.shape]
    example = carrier.wrap(jax.numpy.zeros(shape, array.dtype))
    return mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=open_dims))


def _wrapped(inner: torch.Tensor) -> Tensor:
    return Tensor.of_inner(inner, inner.stride())


def _carrier_of(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "jax":
        raise UnsupportedInputError("tensor", f"one on {tensor.device}", "one on jax; move it with .to('jax')")
    return tensor._carrier if isinstance(tensor, Tensor) else tensor


class _Lifting(Observer):
    """Puts tensors without values in place of those that a function reads beside its operands.

    Attributes:
        found: these tensors, and what stands for each, by id.
    """

    def __init__(self, mode: FakeTensorMode, known: Any = ()) -> None:
        self._mode = mode
        self.found: dict[int, tuple[Tensor, torch.Tensor]] = {id(tensor): (tensor, fake) for tensor, fake in known}

    def met(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        if func is torch.ops.aten.lift_fresh.default:  # a constant, which the function makes anew in each run
            return args, kwargs
        return [self._one(a) for a in args], {k: self._one(v) for k, v in kwargs.items()}

    def _one(self, value: Any) -> Any:
        if isinstance(value, Tensor) and not is_traced(value):
            if id(value) not in self.found:
                static: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC] * value.dim())
                fake = _wrapped(self._mode.from_tensor(value._carrier, symbolic_context=static))
                self.found[id(value)] = value, fake
            return self.found[id(value)][1]
        return [self._one(v) for v in value] if type(value) in (list, tuple) else value


# Sizes


_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


class _Examples:
    """A size for each symbolic dimension: equal for equal ones, and different for others.

    Args:
        sizes: those of the arrays.
    """

    def __init__(self, sizes: Sequence[Any]) -> None:
        dims = list(dict.fromkeys(size for size in sizes if is_symbolic_dim(size)))
        names = sorted({name for dim in dims for name in dim._get_vars()})
        for values in self._choices({str(dim): dim for dim in dims}, names):
            found = {dim: int(dim._evaluate(values)) for dim in dims}
            if len(set(found.values())) == len(found) and min(found.values(), default=2) > 1:
                self._found = found
                return
        got = ", ".join(map(str, dims))
        raise UnsupportedInputError(_WHAT, f"dimensions {got}", "such as may be different, and larger than 1")

    def size(self, size: Any) -> int:
        return self._found.get(size, size)

    @staticmethod
    def _choices(dims: Mapping[str, Any], names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Values of the variables: within the bounds of those that are dimensions by themselves."""
        fitting = [
            [n for n in (*_PRIMES, *(2**k for k in range(1, 16))) if name not in dims or _may_be(dims[name], n)]
            for name in names
        ]
        for values in itertools.islice(itertools.product(*fitting), 10000):
            yield dict(zip(names, values, strict=True))


def _may_be(dim: Any, value: int) -> bool:
    return not _is_known(lambda: dim > value) and not _is_known(lambda: dim < value)


def _is_known(condition: Callable[[], Any]) -> bool:
    """True if a condition on symbolic dimensions holds for all of their values."""
    try:
        return bool(condition())
    except symbolic_sizes.Undecided:
        return False


def _dimensions(operands: Sequence[torch.Tensor], arrays: Sequence[Any]) -> dict[Any, Any]:
    """The dimension that each of torch's symbols stands for."""
    pairs: list[Any] = [p for o, a in zip(operands, arrays, strict=True) for p in zip(o.shape, a.shape, strict=True)]
    return {s.node.expr: dim for s, dim in pairs if isinstance(s, torch.SymInt) and s.node.expr.is_symbol}


_RELATIONS: dict[type, Callable[[Any], Any]] = {
    sympy.Eq: lambda difference: difference == 0,
    sympy.Ne: lambda difference: _is_known(lambda: difference > 0) or _is_known(lambda: difference < 0),
    sympy.Lt: lambda difference: difference < 0,
    sympy.Le: lambda difference: difference <= 0,
    sympy.Gt: lambda difference: difference > 0,
    sympy.Ge: lambda difference: difference >= 0,
}


def _require_assumptions(env: ShapeEnv, dimensions: Mapping[Any, Any]) -> None:
    for guard in env.guards:
        holds = _RELATIONS.get(type(guard.expr))
        if holds is None or not _is_known(functools.partial(_holds, holds, guard.expr, dimensions)):
            said = str(guard.expr.subs({symbol: sympy.Symbol(str(dim)) for symbol, dim in dimensions.items()}))
            raise UnsupportedInputError(
                _WHAT, f"one that holds only if {said}",
                "one for all values; jax.export.symbolic_shape(..., constraints=[...]) excludes some",
            )  # fmt: skip


def _holds(relation: Callable[[Any], Any], expr: Any, dimensions: Mapping[Any, Any]) -> Any:
    one, other = (evaluated_size(side, dimensions) for side in expr.args)
    return relation(one - other)
