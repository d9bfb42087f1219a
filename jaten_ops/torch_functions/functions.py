"""Functions of arrays with the derivatives of torch's autograd, and their JAX programs.

`TorchFunction` is a torch function, `BatchedFunction` one mapped by `jax.vmap`. Both are closed under differentiation:
their vector-Jacobian and Jacobian-vector products are such functions again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import torch
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from jaten_ops.errors import UnsupportedInputError
from jaten_ops.kernel_base.checks import READS_OF_TRACERS, what_is_read, where_read
from jaten_ops.tensor.tensor import array_of, from_array
from jaten_ops.xla.x64 import tracing

from .leaks import none_kept
from .run_context import inside
from .torch_autograd import (
    FlatFunction,
    conjugated,
    gradients,
    is_continuous,
    pulled_back,
    pushed_forward,
    run_with_leaves,
)

Flags = tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """A function split into its forward and backward passes.

    Attributes:
        forward: the operands to the results, then what the backward pass needs of the forward pass; None where that
            was run with values, once.
        backward: what it needs, then the gradients of some results, to the gradients of some operands.
        by: the results that have gradients.
        kept: what the backward pass needs: the number of an operand, or None for what the forward pass returns.
    """

    forward: ClosedJaxpr | None
    backward: ClosedJaxpr
    by: tuple[int, ...]
    kept: tuple[int | None, ...]


class Function(Protocol):
    """A function of arrays that returns a list of arrays, with derivatives."""

    def evaluate(self, *arrays: Any) -> list[Any]: ...

    def split(self, avals: Sequence[Any], wrt: tuple[int, ...]) -> Split: ...

    def pulled_back(self, wrt: tuple[int, ...], by: tuple[int, ...]) -> Function:
        """The function from operands, then gradients of the results `by`, to gradients of the operands `wrt`."""

    def pushed_forward(self, wrt: tuple[int, ...], by: tuple[int, ...]) -> Function:
        """The function from operands, then tangents of the operands `wrt`, to tangents of the results `by`."""


def traced(fn: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """A function's program; UnsupportedInputError if it reads values, or arrays that JAX traces elsewhere."""
    try:
        with tracing(), none_kept():
            closed = jax.make_jaxpr(fn)(*map(_struct, avals))
    except READS_OF_TRACERS as error:
        raise UnsupportedInputError(
            "a torch function that JAX traces",
            f"one that reads the value of a tensor ({what_is_read(error)}){where_read(error)}",
            "one that does not, but uses torch.where or torch.cond; or a call that JAX does not trace",
        ) from error  # fmt: skip
    return closed


def self_contained(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program unchanged; UnsupportedInputError if its constants include arrays that JAX traces outside of it."""
    if any(isinstance(c, jax.core.Tracer) for c in closed.consts):
        raise UnsupportedInputError(
            "a torch function that JAX traces", "one that uses an array that JAX traces and that is not an argument",
            "one with the array as an argument: torch would treat it as a constant",
        )  # fmt: skip
    return closed


def _struct(array: Any) -> Any:
    """Shape and dtype of an array or its aval, with the mesh, by which kernels tell that it is partitioned."""
    aval = array if isinstance(array, jax.core.ShapedArray) else jax.typeof(array)
    mesh = aval.sharding.mesh
    is_over_mesh = mesh.size > 1 and all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=aval.sharding if is_over_mesh else None)


def evaluated(closed: ClosedJaxpr, arrays: Sequence[Any]) -> list[Any]:
    with tracing():
        return list(jaxpr_as_fun(closed)(*arrays))


class TorchFunction:
    """A torch function of tensors, in the form of a list.

    Args:
        fn: the function. It must not keep operands or results after the call.
        key_impl: the implementation of the PRNG key that precedes the operands; None if there is none.
    """

    def __init__(self, fn: FlatFunction, key_impl: Any = None) -> None:
        self._fn, self._key_impl = fn, key_impl
        self._splits: dict[Any, Split] = {}

    @property
    def _first(self) -> int:
        return 0 if self._key_impl is None else 1

    def _key(self, arrays: Sequence[Any]) -> Any:
        return None if self._key_impl is None else jax.random.wrap_key_data(arrays[0], impl=self._key_impl)

    def _operands(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        return [from_array(a) for a in arrays[self._first :]]

    def evaluate(self, *arrays: Any) -> list[Any]:
        with inside(self._key(arrays), arrays):
            return [array_of(r.detach()) for r in run_with_leaves(self._fn, self._operands(arrays))[0]]

    def record(self, arrays: Sequence[Any], wrt: tuple[int, ...]) -> tuple[Split, list[Any], list[Any]]:
        """Runs the forward pass on arrays, and traces the backward pass.

        Returns:
            The split, without the forward pass; the results; and the saved values that the backward pass needs.
        """
        with inside(self._key(arrays), arrays):
            results, leaves = run_with_leaves(self._fn, self._operands(arrays), self._shifted(wrt))
            by = tuple([i for i, r in enumerate(results) if r.requires_grad and is_continuous(r)])
            parted = [results[i] for i in by]
            outs = [array_of(r.detach()) for r in results]

            def pull(*cotangents: Any) -> list[Any]:
                along = [conjugated(from_array(c)) for c in cotangents]
                return [array_of(conjugated(g)) for g in gradients(parted, along, leaves)]

            backward = traced(pull, [outs[i] for i in by])
        return *_opened(backward, by, arrays), outs

    def split(self, avals: Sequence[Any], wrt: tuple[int, ...]) -> Split:
        key = wrt, tuple([(a.shape, a.dtype) for a in avals])
        if key not in self._splits:
            found: list[Split] = []

            def forward(*arrays: Any) -> list[Any]:
                split, needed, outs = self.record(arrays, wrt)
                found.append(split)
                return [*outs, *needed]

            program = self_contained(traced(forward, avals))
            self._splits[key] = Split(program, found[0].backward, found[0].by, found[0].kept)
        return self._splits[key]

    def pulled_back(self, wrt: tuple[int, ...], by: tuple[int, ...]) -> TorchFunction:
        return TorchFunction(pulled_back(self._fn, self._shifted(wrt), by), self._key_impl)

    def pushed_forward(self, wrt: tuple[int, ...], by: tuple[int, ...]) -> TorchFunction:
        return TorchFunction(pushed_forward(self._fn, self._shifted(wrt), by), self._key_impl)

    def _shifted(self, wrt: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([i - self._first for i in wrt])


def _opened(closed: ClosedJaxpr, by: tuple[int, ...], arrays: Sequence[Any]) -> tuple[Split, list[Any]]:
    """A backward pass with its constants as operands: the forward pass's operands, and its saved values.

    Where JAX traces the forward pass, what it does not trace is constant in the backward pass, too.
    """
    places = {id(a): i for i, a in enumerate(arrays)}
    is_traced = any(isinstance(a, jax.core.Tracer) for a in arrays)
    pairs = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    moved = [(v, c) for v, c in pairs if id(c) in places or not is_traced or isinstance(c, jax.core.Tracer)]
    stay = [pair for pair in pairs if not any(pair[0] is v for v, _ in moved)]
    kept = tuple([places.get(id(c)) for _, c in moved])
    jaxpr = closed.jaxpr.replace(constvars=[v for v, _ in stay], invars=[*(v for v, _ in moved), *closed.jaxpr.invars])
    needed = [c for (_, c), place in zip(moved, kept, strict=True) if place is None]
    return Split(None, ClosedJaxpr(jaxpr, [c for _, c in stay]), by, kept), needed


# Functions mapped by vmap


@dataclass(frozen=True)
class Batch:
    """The batch over which a function is mapped.

    Attributes:
        size: of the first dimension of batched operands and results.
        operands: the operands that are batched.
        results: the results that are batched. Others are sums over the batch, or None if no batched operand enters.
    """

    size: int
    operands: Flags
    results: tuple[bool | None, ...]

    def mapped(self, fn: Callable[..., Any]) -> Callable[..., list[Any]]:
        def call(*arrays: Any) -> list[Any]:
            axes = tuple([0 if has else None for has in self.operands])
            out_axes = [None if has is None else 0 for has in self.results]
            results = jax.vmap(fn, axes, out_axes, axis_size=self.size)(*arrays)
            return [
                jnp.sum(r, 0, dtype=r.dtype) if has is False else r
                for r, has in zip(results, self.results, strict=True)
            ]

        return call

    def single(self, avals: Sequence[Any]) -> list[Any]:
        """The operands of one element of the batch."""
        return [
            jax.ShapeDtypeStruct(a.shape[1:] if has else a.shape, a.dtype)
            for a, has in zip(avals, self.operands, strict=True)
        ]


def spread(closed: ClosedJaxpr, flags: Sequence[bool]) -> list[bool]:
    """For each result of a program, whether it depends on a flagged operand."""
    jaxpr = closed.jaxpr
    reached = {v for v, has in zip(jaxpr.invars, flags, strict=True) if has}

    def is_reached(atoms: Sequence[Any]) -> bool:
        return any(not isinstance(a, Literal) and a in reached for a in atoms)

    for eqn in jaxpr.eqns:
        if is_reached(eqn.invars):
            reached.update(eqn.outvars)
    return [is_reached([v]) for v in jaxpr.outvars]


@dataclass(frozen=True, eq=False)
class BatchedFunction:
    """A function that is mapped over a batch; a result without it is the sum over it."""

    fn: Function
    batch: Batch

    def evaluate(self, *arrays: Any) -> list[Any]:
        return self.batch.mapped(self.fn.evaluate)(*arrays)

    def split(self, avals: Sequence[Any], wrt: tuple[int, ...]) -> Split:
        batch, inner = self.batch, self.fn.split(self.batch.single(avals), wrt)
        assert inner.forward is not None
        # values that do not depend on the batch are kept once
        extra = iter(spread(inner.forward, batch.operands)[len(batch.results) :])
        flags = tuple([next(extra) if place is None else batch.operands[place] for place in inner.kept])
        needed = [has or None for has, place in zip(flags, inner.kept, strict=True) if place is None]
        ahead = Batch(batch.size, batch.operands, (*batch.results, *needed))
        back = Batch(
            batch.size,
            (*flags, *(bool(batch.results[i]) for i in inner.by)),
            tuple([batch.operands[i] for i in wrt]),
        )
        forward = traced(ahead.mapped(functools.partial(_call, inner.forward)), avals)
        given = self._given(avals, inner, forward)
        backward = traced(back.mapped(functools.partial(_call, inner.backward)), given)
        return Split(forward, backward, inner.by, inner.kept)

    def _given(self, avals: Sequence[Any], inner: Split, forward: ClosedJaxpr) -> list[Any]:
        """The operands of the backward pass."""
        results, extra = (
            forward.out_avals[: len(self.batch.results)],
            iter(forward.out_avals[len(self.batch.results) :]),
        )
        kept = [next(extra) if place is None else avals[place] for place in inner.kept]
        return [*kept, *(results[i] for i in inner.by)]

    def pulled_back(self, wrt: tuple[int, ...], by: tuple[int, ...]) -> BatchedFunction:
        batch, operands = self.batch, self.batch.operands
        flags = (*operands, *(bool(batch.results[i]) for i in by))
        return BatchedFunction(
            self.fn.pulled_back(wrt, by), Batch(batch.size, flags, tuple([operands[i] for i in wrt]))
        )

    def pushed_forward(self, wrt: tuple[int, ...], by: tuple[int, ...]) -> BatchedFunction:
        batch, operands = self.batch, self.batch.operands
        flags = (*operands, *(operands[i] for i in wrt))
        return BatchedFunction(
            self.fn.pushed_forward(wrt, by), Batch(batch.size, flags, tuple([batch.results[i] for i in by]))
        )


def _call(closed: ClosedJaxpr, *arrays: Any) -> list[Any]:
    return list(jaxpr_as_fun(closed)(*arrays))
