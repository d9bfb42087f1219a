"""Arrays with more elements than a program has: which of these there are, and how they move.

A program with open sizes is run with larger ones. Each array has the larger shape. Along a dimension whose size is open
the elements that there are come first, unless dimensions were merged: then they are where the dimensions' own elements
are. What stands in the other places is arbitrary, and no rule lets it reach them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from jax.extend import core

Factor = tuple[int, Any]
"""The larger size of a dimension, and its size: an int, or an expression of JAX's dimension variables."""

OpenAxis = tuple[Factor, ...] | None
"""A dimension as the product of such, the last one innermost; None for one along which nothing changes."""


class NotMasked(Exception):
    """The program cannot be run with larger sizes, with a reason; `scopes` are JAX's names of the step."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.scopes = ""


_FUNCTIONS: dict[str, Any] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": lambda *each: max(each),
    "min": lambda *each: min(each),
    "__builtins__": {},
}
_TRACED = _FUNCTIONS | {
    "max": lambda a, b: jnp.maximum(a, b),
    "min": lambda a, b: jnp.minimum(a, b),
}


def size_value(size: Any, values: Mapping[str, Any]) -> Any:
    """An expression of JAX's dimension variables, for given ints; `size` may be its text."""
    if isinstance(size, int | np.integer):
        return int(size)
    return eval(_code_of(str(size)), _FUNCTIONS, dict(values))


@functools.lru_cache(maxsize=4096)
def _code_of(size: str) -> CodeType:
    return compile(size.replace("^", "**"), "<size>", "eval")  # JAX's own text of an expression


class PaddedSizes:
    """The open sizes of one program: the larger ones, and the values of those that there are.

    Args:
        larger: an int for each dimension variable.
        given: a traced int for each.

    Attributes:
        assumed: expressions whose values must not be above those for the larger sizes, as text.
    """

    def __init__(self, larger: Mapping[str, int], given: Mapping[str, Any]) -> None:
        self._larger, self._given = dict(larger), dict(given)
        self._known: dict[str, list[tuple[Any, Any]]] = {}  # each with the trace that has it: a loop's body has its own
        self.assumed: set[str] = set()

    def larger(self, size: Any) -> int:
        """A size of the larger program."""
        return int(size_value(size, self._larger))

    def given(self, size: Any) -> Any:
        """A size of the program: an int, or a traced one."""
        if not is_symbolic_dim(size):
            return int(size)
        self.assumed.add(str(size))
        return self.number(size)

    def number(self, size: Any) -> Any:
        """As `given`, for a number with which nothing is placed: it may be above that for the larger sizes."""
        text, trace = str(size), core.get_opaque_trace_state(convention="flax")
        known = self._known.setdefault(text, [])
        for of, found in known:
            if of == trace:
                return found
        found = lax.convert_element_type(eval(text.replace("^", "**"), _TRACED, self._given), np.int64)  # as above
        known.append((trace, found))
        return found

    def assume(self, difference: Any) -> None:
        """Notes that a difference of sizes must not be above that of the larger ones."""
        if is_symbolic_dim(difference):
            self.assumed.add(str(difference))

    def shape(self, shape: Sequence[Any]) -> tuple[int, ...]:
        return tuple(map(self.larger, shape))


@dataclass(frozen=True)
class Masked:
    """An array of the larger shape.

    Attributes:
        array: it.
        shape: the program's, with open sizes.
        axes: for each dimension where its elements are.
    """

    array: jax.Array
    shape: tuple[Any, ...]
    axes: tuple[OpenAxis, ...]


def padded_array(value: Any) -> Any:
    """The array of a value."""
    return value.array if isinstance(value, Masked) else value


def has_open_size(shape: Sequence[Any]) -> bool:
    return any(map(is_symbolic_dim, shape))


def same(a: Any, b: Any) -> bool:
    """True if two sizes are certainly equal."""
    return str(a) == str(b)


def canonical(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """The factors with those that are whole in the ones around them."""
    found: list[Factor] = []
    for larger, size in factors:
        if larger == 1 and same(size, 1):
            continue
        if found and same(larger, size):
            found[-1] = found[-1][0] * larger, found[-1][1] * size
        else:
            found.append((larger, size))
    return tuple(found) or ((1, 1),)


class Masks:
    """The operations on arrays of the larger sizes that rules are made of."""

    def __init__(self, sizes: PaddedSizes) -> None:
        self.sizes = sizes

    def first(self, size: Any) -> tuple[Factor, ...]:
        """A dimension whose elements come first."""
        return ((self.sizes.larger(size), size),)

    def of(self, array: Any, shape: Sequence[Any], axes: Sequence[OpenAxis] | None = None) -> Any:
        """An array with open sizes as `Masked`; another as it is. Elements come first if nothing else is said."""
        shape = tuple(shape)
        if not has_open_size(shape):
            return array
        if jnp.shape(array) != self.sizes.shape(shape):
            raise NotMasked(f"gives the sizes {jnp.shape(array)}, and not {self.sizes.shape(shape)}")
        found = [self.first(s) for s in shape] if axes is None else list(axes)
        return Masked(array, shape, tuple(found))

    def axes(self, value: Any) -> tuple[OpenAxis, ...]:
        return value.axes if isinstance(value, Masked) else tuple([self.first(s) for s in jnp.shape(value)])

    def said(self, value: Any, axis: int) -> tuple[Factor, ...]:
        """The factors of a dimension, also of one along which nothing changes."""
        return self.axes(value)[axis] or self.first(value.shape[axis])

    def there(self, factors: Sequence[Factor]) -> jax.Array:
        """A condition for each element of a dimension: whether it is there."""
        count = math.prod(larger for larger, _ in factors)
        at, found = lax.iota(np.int64, count), jnp.ones(count, bool)
        for larger, size in reversed(factors):
            if not same(larger, size):
                found &= at % larger < self.sizes.given(size)
            at //= larger
        return found

    def filled(self, value: Any, axes: Sequence[int], fill: Any) -> Any:
        """An array with a number in the places along some dimensions that are none of the program's."""
        if not isinstance(value, Masked):
            return value
        array = value.array
        for axis in axes:
            if is_symbolic_dim(value.shape[axis]):
                shape = [-1 if d == axis else 1 for d in range(array.ndim)]
                there = self.there(self.said(value, axis)).reshape(shape)
                array = jnp.where(there, array, jnp.asarray(fill, array.dtype))
        return replace(value, array=array)

    def leading(self, value: Any, axis: int) -> Any:
        """The array with its elements first along a dimension."""
        if not isinstance(value, Masked) or not is_symbolic_dim(value.shape[axis]):
            return value
        axes, factors = list(value.axes), value.axes[axis]
        axes[axis] = self.first(value.shape[axis])
        if factors is None or len(factors) == 1:
            return replace(value, axes=tuple(axes))
        at = lax.iota(np.int64, value.array.shape[axis])
        places, stride = jnp.zeros_like(at), 1
        for larger, size in reversed(factors):
            given = self.sizes.given(size)
            places += at % given * stride
            at //= given
            stride *= larger
        return Masked(jnp.take(value.array, places, axis, mode="clip"), value.shape, tuple(axes))

    def all_leading(self, value: Any) -> Any:
        for axis in range(len(value.shape) if isinstance(value, Masked) else 0):
            value = self.leading(value, axis)
        return value

    def aligned(self, values: Sequence[Any], places: Sequence[int | None]) -> tuple[list[Any], OpenAxis]:
        """Values with their elements in the same places of a dimension, another in each, or none; and these places."""
        found = list(values)
        axes = [self.axes(v)[p] for v, p in zip(values, places, strict=True) if p is not None]
        told = [a for a in axes if a is not None]
        if any(a != told[0] for a in told):
            pairs = zip(values, places, strict=True)
            found = [v if p is None or self.axes(v)[p] is None else self.leading(v, p) for v, p in pairs]
            axes = [self.axes(v)[p] for v, p in zip(found, places, strict=True) if p is not None]
            told = [a for a in axes if a is not None]
        return found, told[0] if told else None

    def reshaped(self, value: Masked, shape: Sequence[Any]) -> Any:
        """The value in another shape."""
        factors = [f for axis in range(len(value.shape)) for f in self.said(value, axis)]
        axes = self._parted(canonical(factors), shape)
        array = value.array
        if axes is None:
            array = self._flat(value, canonical(factors))
            whole = math.prod(value.shape)
            axes = self._parted(self.first(whole), shape)
        if axes is None:
            raise NotMasked("lays elements out anew")
        return self.of(array.reshape(self.sizes.shape(shape)), shape, axes)

    def _flat(self, value: Masked, factors: tuple[Factor, ...]) -> jax.Array:
        whole = math.prod(value.shape)
        return self.leading(Masked(value.array.reshape(-1), (whole,), (factors,)), 0).array

    def _parted(self, factors: Sequence[Factor], shape: Sequence[Any]) -> list[OpenAxis] | None:
        """The factors of all elements as those of the dimensions of a shape; None if they do not fit."""
        left = list(factors)
        axes: list[OpenAxis] = []
        for wanted in shape:
            taken = self._taken(left, wanted)
            if taken is None:
                return None
            axes.append(canonical(taken))
        return axes if canonical(left) == ((1, 1),) else None

    def _taken(self, left: list[Factor], wanted: Any) -> list[Factor] | None:
        """Takes the outermost factors for a dimension."""
        larger, count, size, taken = self.sizes.larger(wanted), 1, 1, []
        while count != larger or not same(size, wanted):
            if not left or count == 0 or larger % count:
                return None
            first = left.pop(0)
            need = larger // count
            if need % first[0]:  # a part of this one
                inner, rest = divmod(first[0], need) if need else (0, 1)
                outer = wanted if same(size, 1) else wanted // size
                if rest or not same(outer * inner, first[1]):
                    return None
                left.insert(0, (inner, inner))
                first = need, outer
            taken.append(first)
            count, size = count * first[0], size * first[1]
        return taken
