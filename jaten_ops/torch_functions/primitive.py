"""The JAX primitive for torch functions, with rules for each of JAX's transformations.

Its one parameter is a program. A program says what is evaluated, and of what function it is: to differentiate it
further is to differentiate that, by torch's autograd. So what a torch function cuts off from autograd stays cut off in
derivatives of any order, whereas JAX's derivative of a gradient's operations would not know of it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import ad, batching, mlir

from jaten_ops.errors import UnsupportedInputError
from jaten_ops.tracing import opaque
from jaten_ops.xla.x64 import tracing

from .functions import Batch, BatchedFunction, Function, Split, TorchFunction, evaluated, self_contained, spread, traced
from .linear_transpose import transposed_backward

partial_eval: Any
try:
    from jax._src.interpreters import partial_eval  # private: see `_staged`
except ImportError:  # pragma: no cover  # a JAX that has moved it
    partial_eval = None


class TorchProgram(Protocol):
    """A program that the primitive evaluates.

    Attributes:
        function: the function that it evaluates or differentiates.
        arguments: the operands that are the function's.
        results: the number of its first results that are the function's.
        linear: the operands in which it is linear, with all of its results.
    """

    @property
    def function(self) -> Function: ...

    @property
    def arguments(self) -> tuple[int, ...]: ...

    @property
    def results(self) -> int: ...

    @property
    def linear(self) -> tuple[int, ...]: ...

    def evaluate(self, *arrays: Any) -> list[Any]: ...

    def avals(self, given: Sequence[Any]) -> list[Any]: ...

    def spread(self, flags: Sequence[bool], given: Sequence[Any]) -> list[bool | None]:
        """For each result, whether it is batched if these operands are; None if it depends on none of them."""

    def transposed(self) -> TorchProgram: ...


def _listing(program: ClosedJaxpr) -> str:
    """A program as JAX prints it, which `jax.make_jaxpr` shows in place of the object."""
    return "{" + str(program).strip("{} ") + "}"


def bind(program: TorchProgram, *arrays: Any) -> list[Any]:
    with tracing():
        return program_p.bind(*_varying_alike(arrays), program=program)


def _varying_alike(arrays: Sequence[Any]) -> list[Any]:
    """Operands that vary over the same axes of `jax.shard_map`'s mesh: the gradient of one that does not is summed."""
    axes = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    every = frozenset().union(*axes)
    return [
        jax.lax.pcast(a, tuple(sorted(every - own)), to="varying") if own != every else a
        for a, own in zip(arrays, axes, strict=True)
    ]


@dataclass(eq=False, repr=False)
class Whole:
    """A function itself."""

    function: Function
    given: Sequence[Any]
    linear: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.arguments = tuple(range(len(self.given)))

    @functools.cached_property
    def program(self) -> ClosedJaxpr:
        return self_contained(traced(self.function.evaluate, self.given))

    @property
    def results(self) -> int:
        return len(self.program.out_avals)

    def evaluate(self, *arrays: Any) -> list[Any]:
        return evaluated(self.program, arrays)

    def avals(self, given: Sequence[Any]) -> list[Any]:
        return list(self.program.out_avals)

    def spread(self, flags: Sequence[bool], given: Sequence[Any]) -> list[bool | None]:
        return [True] * self.results

    def transposed(self) -> TorchProgram:
        raise AssertionError("not linear")

    def __repr__(self) -> str:
        return _listing(self.program)


@dataclass(eq=False, repr=False)
class Forward:
    """A function that also returns the values that its backward pass needs."""

    function: Function
    split: Split
    linear: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.split.forward is not None
        self.program = self.split.forward
        self.arguments = tuple(range(len(self.program.in_avals)))
        self.results = len(self.program.out_avals) - self.split.kept.count(None)

    def evaluate(self, *arrays: Any) -> list[Any]:
        return evaluated(self.program, arrays)

    def avals(self, given: Sequence[Any]) -> list[Any]:
        return list(self.program.out_avals)

    def spread(self, flags: Sequence[bool], given: Sequence[Any]) -> list[bool | None]:
        found = [has or None for has in spread(self.program, flags)]
        return [True] * self.results + found[self.results :]

    def transposed(self) -> TorchProgram:
        raise AssertionError("not linear")

    def __repr__(self) -> str:
        return _listing(self.program)


@dataclass(eq=False, repr=False)
class Linear:
    """The derivative of a function: takes operands, saved values, and the tangents or cotangents that it carries.

    Attributes:
        of: the function.
        count: the number of its operands.
        backward: whether gradients of its results are carried back to those of its operands, or tangents forward.
    """

    of: Function
    count: int
    wrt: tuple[int, ...]
    split: Split
    backward: bool

    def __post_init__(self) -> None:
        derive = self.of.pulled_back if self.backward else self.of.pushed_forward
        self.function = derive(self.wrt, self.split.by)
        first = self.count + self.split.kept.count(None)
        taken, given = (self.split.by, self.wrt) if self.backward else (self.wrt, self.split.by)
        self.linear = tuple(range(first, first + len(taken)))
        self.arguments = (*range(self.count), *self.linear)
        self.results = len(given)

    def _parts(self, arrays: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """The values that the backward pass needs, and the tangents or cotangents that are carried."""
        extra = iter(arrays[self.count : self.linear[0]]) if self.linear else iter(arrays[self.count :])
        return [next(extra) if i is None else arrays[i] for i in self.split.kept], [arrays[i] for i in self.linear]

    def evaluate(self, *arrays: Any) -> list[Any]:
        kept, carried = self._parts(arrays)
        if self.backward:
            return evaluated(self.split.backward, [*kept, *carried])

        with tracing():
            return transposed_backward(self.split.backward, kept, carried)

    def _cotangents(self) -> list[Any]:
        return list(self.split.backward.in_avals[len(self.split.kept) :])

    def avals(self, given: Sequence[Any]) -> list[Any]:
        return list(self.split.backward.out_avals) if self.backward else self._cotangents()

    def spread(self, flags: Sequence[bool], given: Sequence[Any]) -> list[bool | None]:
        return [True] * self.results

    def transposed(self) -> Linear:
        return Linear(self.of, self.count, self.wrt, self.split, not self.backward)

    def __repr__(self) -> str:
        return ("" if self.backward else "transpose of ") + _listing(self.split.backward)


@dataclass(eq=False, repr=False)
class Batched:
    """A program mapped over a batch."""

    one: TorchProgram
    batch: Batch

    def __post_init__(self) -> None:
        self.arguments, self.results, self.linear = self.one.arguments, self.one.results, self.one.linear

    @functools.cached_property
    def function(self) -> BatchedFunction:
        flags = tuple([self.batch.operands[i] for i in self.arguments])
        return BatchedFunction(self.one.function, Batch(self.batch.size, flags, self.batch.results[: self.results]))

    def evaluate(self, *arrays: Any) -> list[Any]:
        with tracing():
            return self.batch.mapped(self.one.evaluate)(*arrays)

    def avals(self, given: Sequence[Any]) -> list[Any]:
        single = self.one.avals(self.batch.single(given))
        return [
            a.update(shape=(self.batch.size, *a.shape)) if has else a
            for a, has in zip(single, self.batch.results, strict=True)
        ]

    def spread(self, flags: Sequence[bool], given: Sequence[Any]) -> list[bool | None]:
        if len(self.batch.results) == self.results:
            return [True] * self.results
        return self.one.spread(flags, self.batch.single(given))

    def transposed(self) -> Batched:
        operands = self.batch.operands
        carried = tuple([bool(has) for has in self.batch.results])
        flags = (*operands[: len(operands) - len(self.linear)], *carried)
        results = tuple([operands[i] for i in self.linear])
        return Batched(self.one.transposed(), Batch(self.batch.size, flags, results))

    def __repr__(self) -> str:
        return f"over a batch of {self.batch.size}: {self.one!r}"


program_p = Primitive("torch_program")
program_p.multiple_results = True


@program_p.def_impl
@opaque
def _impl(*arrays: Any, program: TorchProgram) -> list[Any]:
    return program.evaluate(*arrays)


@program_p.def_abstract_eval
@opaque
def _abstract_eval(*avals: Any, program: TorchProgram) -> list[Any]:
    results = program.avals(avals)
    like = next((a for a in avals if a.manual_axis_type.varying), None)
    if like is None:
        return results
    mesh = like.sharding.mesh  # the results vary as the operands do
    places = [jax.sharding.NamedSharding(mesh, jax.P(*[None] * r.ndim)) for r in results]
    return [
        like.update(shape=r.shape, dtype=r.dtype, weak_type=False, sharding=place)
        for r, place in zip(results, places, strict=True)
    ]


def _staged(trace: Any, source_info: Any, *tracers: Any, program: TorchProgram) -> list[Any]:
    """The equation of a program in one that JAX traces.

    JAX's own rule keeps the types of results in a cache, by the program: so the function would never be freed, and the
    module and its parameters with it.
    """
    results = _abstract_eval(*[tracer.aval for tracer in tracers], program=program)
    return trace.emit_eqn(tracers, results, program_p, {"program": program}, frozenset(), source_info)


if hasattr(getattr(partial_eval, "DynamicJaxprTrace", None), "emit_eqn"):  # otherwise JAX's own rule is used
    getattr(partial_eval, "custom_staging_rules", {})[program_p] = _staged


def _lowered(*arrays: Any, program: TorchProgram) -> list[Any]:
    return program.evaluate(*arrays)


_lowering = mlir.lower_fun(_lowered, multiple_results=True)


@opaque
def _lowered_in_mesh(ctx: Any, *arrays: Any, **params: Any) -> Any:
    """The lowering, for which operands vary over no axes of `jax.shard_map`'s mesh: what is made inside does not."""
    here = jax.sharding.ManualAxisType()
    avals = [a.update(manual_axis_type=here) for a in ctx.avals_in]
    # Some operations are traced as late as here. Symbolic dimensions have the integers of the whole module.
    is_open = any(not isinstance(size, int) for a in avals for size in a.shape)
    with contextlib.nullcontext() if is_open else tracing():
        return _lowering(ctx.replace(avals_in=avals), *arrays, **params)


mlir.register_lowering(program_p, _lowered_in_mesh)


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def _zero_of(array: Any) -> Any:
    return ad.Zero(jax.typeof(array).to_tangent_aval())


@opaque
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: TorchProgram) -> tuple[list[Any], list[Any]]:
    wrt = tuple([k for k, i in enumerate(program.arguments) if not _is_zero(tangents[i])])
    if all(program.arguments[k] in program.linear for k in wrt):
        results = bind(program, *primals)
        if not wrt:
            return results, [_zero_of(r) for r in results]
        carried = [ad.instantiate_zeros(tangents[i]) for i in program.linear]
        return results, bind(program, *primals[: program.linear[0]], *carried)
    operands = [primals[i] for i in program.arguments]
    split, results, needed = _split(program.function, operands, wrt)
    if not _is_whole(program):
        results = bind(program, *primals)
    out = [_zero_of(r) for r in results]
    if split.by:
        linear = Linear(program.function, len(operands), wrt, split, backward=False)
        given = [tangents[program.arguments[k]] for k in wrt]
        for i, tangent in zip(split.by, bind(linear, *operands, *needed, *given), strict=True):
            out[i] = tangent
    return results, out


def _is_whole(program: TorchProgram) -> bool:
    return isinstance(program, Whole) or (isinstance(program, Batched) and _is_whole(program.one))


def _split(function: Function, operands: list[Any], wrt: tuple[int, ...]) -> tuple[Split, list[Any], list[Any]]:
    """A split of a function, its results and saved values. With concrete arrays it is run as by torch."""
    if isinstance(function, TorchFunction) and not any(isinstance(a, jax.core.Tracer) for a in operands):
        split, needed, results = function.record(operands, wrt)
        return split, results, needed
    split = function.split([jax.typeof(a) for a in operands], wrt)
    found = bind(Forward(function, split), *operands)
    count = len(found) - split.kept.count(None)
    return split, found[:count], found[count:]


ad.primitive_jvps[program_p] = _jvp


@opaque
def _transpose(cotangents: Sequence[Any], *operands: Any, program: TorchProgram) -> list[Any]:
    out: list[Any] = [None] * len(operands)
    if all(map(_is_zero, cotangents)):
        for i in program.linear or range(len(operands)):
            out[i] = ad.Zero(operands[i].aval)
        return out
    if not program.linear:
        return _transpose_function(cotangents, operands, program)
    given = operands[: program.linear[0]]
    back = bind(program.transposed(), *given, *map(ad.instantiate_zeros, cotangents))
    for i, cotangent in zip(program.linear, back, strict=True):
        out[i] = cotangent if ad.is_undefined_primal(operands[i]) else None
    return out


def _transpose_function(cotangents: Sequence[Any], operands: Sequence[Any], program: TorchProgram) -> list[Any]:
    """The transpose of a function itself, as `jax.linear_transpose` asks for it: its backward pass.

    Raises:
        UnsupportedInputError: the backward pass depends on the operands by which it is transposed.
    """
    wrt = tuple([k for k, i in enumerate(program.arguments) if ad.is_undefined_primal(operands[i])])
    avals = [x.aval if ad.is_undefined_primal(x) else jax.typeof(x) for x in (operands[i] for i in program.arguments)]
    split = program.function.split(avals, wrt)
    assert split.forward is not None
    count = len(split.forward.out_avals) - split.kept.count(None)
    entered = spread(split.forward, [k in wrt for k in range(len(avals))])[count:]
    if any(entered) or any(place in wrt for place in split.kept):
        raise UnsupportedInputError(
            "a torch function that JAX transposes", "one whose derivative depends on the operand", "one linear in it"
        )
    given = [jnp.zeros(a.shape, a.dtype) if k in wrt else operands[program.arguments[k]] for k, a in enumerate(avals)]
    needed = bind(Forward(program.function, split), *given)[count:]
    results = split.forward.out_avals
    # a number in place of a cotangent has a dtype of its own
    carried = [jax.lax.convert_element_type(ad.instantiate_zeros(cotangents[i]), results[i].dtype) for i in split.by]
    back = bind(Linear(program.function, len(given), wrt, split, backward=True), *given, *needed, *carried)
    out: list[Any] = [None] * len(operands)
    for k, cotangent in zip(wrt, back, strict=True):
        out[program.arguments[k]] = cotangent
    return out


ad.primitive_transposes[program_p] = _transpose


@opaque
def _batch(operands: Sequence[Any], dims: Sequence[Any], *, program: TorchProgram) -> tuple[list[Any], list[Any]]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    first = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    flags = tuple([d is not None for d in dims])
    single = Batch(size, flags, ()).single([jax.typeof(x) for x in first])
    batch = Batch(size, flags, tuple(program.spread(flags, single)))
    results = bind(Batched(program, batch), *first)
    return results, [0 if has else None for has in batch.results]


batching.primitive_batchers[program_p] = _batch
