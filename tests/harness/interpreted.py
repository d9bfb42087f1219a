"""The interpreter beside the compiler: each call that is interpreted is compiled as well, and compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from jaten_ops.interpreter import first_calls


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
        found = list(map(first_calls.as_array, first_calls.as_xla(program, leaves), program.avals))
        expected = self._compiled(*values)
        name = self._compiled.__name__
        for one, other in zip(found, jax.tree.leaves(expected), strict=True):
            assert same(one, other), f"{name} interpreted: {one}, compiled: {other}; of {leaves}"
        names.append(name)
        return expected

    with mock.patch.object(first_calls.FirstCalls, "_interpreted", both):
        yield names
