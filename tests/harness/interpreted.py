"""Calls without a compile of their own: interpreted ones beside the compiler's, and programs for larger arrays."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from jaten_ops.interpreter import first_calls
from jaten_ops.interpreter.padded_calls import _VERY_MANY, PaddedCall, PaddedCalls


def same(one: Any, other: Any) -> bool:
    """True if two arrays agree to the last bit, but for the signs of zeros and the bits of a NaN."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind == "V":  # bfloat16 and shorter ones, which float64 holds
        one, other = one.astype(np.float64), other.astype(np.float64)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


@contextlib.contextmanager
def compared() -> Iterator[list[str]]:
    """A context in which interpreted calls return what is compiled, and raise an error if the two differ.

    Yields:
        The names of the functions that were interpreted.
    """
    names: list[str] = []

    def both(self: Any, kind: Any, leaves: list[Any], values: tuple[Any, ...]) -> Any:
        program = kind.program
        if isinstance(program, PaddedCall):  # rounds otherwise
            return self.compiled(*values)
        found = list(map(first_calls.as_array, first_calls.as_xla(program, leaves), program.avals))
        expected = self.compiled(*values)
        name = self.compiled.__name__
        for one, other in zip(found, jax.tree.leaves(expected), strict=True):
            assert same(one, other), f"{name} interpreted: {one}, compiled: {other}; of {leaves}"
        names.append(name)
        return expected

    with mock.patch.object(first_calls.FirstCalls, "_uncompiled", both):
        yield names


@contextlib.contextmanager
def padded() -> Iterator[list[str]]:
    """A context in which a program for larger arrays runs wherever it can, for all sizes above 1.

    Yields:
        The names of the functions for which it ran.
    """
    names: list[str] = []
    run = first_calls.FirstCalls._uncompiled

    def kind_of(self: Any, values: Any, leaves: list[Any]) -> Any:
        if self._padding is None:
            return first_calls._Kind()
        shapes = [*map(np.shape, leaves), *(values[i] for i in self._sizes)]
        calls, traced = PaddedCalls(shapes), self.compiled.trace(*values)
        sizes = tuple(itertools.chain.from_iterable(shapes))
        differing = tuple(k for k, size in enumerate(sizes) if size > 1)
        changing = calls._changing(sizes, differing, _VERY_MANY)
        found = calls.call(changing, leaves, shapes, functools.partial(self._traced, values))
        if found is None or found[0].avals != traced.jaxpr.out_avals:
            return first_calls._Kind()
        return first_calls._Kind(found[0], jax.tree.structure(traced.out_info))

    def named(self: Any, kind: Any, leaves: list[Any], values: tuple[Any, ...]) -> Any:
        results = run(self, kind, leaves, values)
        if isinstance(kind.program, PaddedCall):  # it has a form for larger arrays
            names.append(self.compiled.__name__)
        return results

    with (
        mock.patch.object(first_calls.FirstCalls, "_kind_of", kind_of),
        mock.patch.object(first_calls.FirstCalls, "_uncompiled", named),
        mock.patch.object(first_calls, "_CALM", float("inf")),
        mock.patch.object(first_calls, "SECONDS", float("inf")),
    ):
        yield names
