"""A value of a program, in the orders of its dimensions that have been made of it so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import lax

from jaten_ops.kernel_base.materialize import stored
from jaten_ops.kernel_base.promotion import is_float

_WORK_TO_STORE = 4  # XLA would compute it in the order that is asked for, and read each operand across memory

Order = tuple[int, ...]
"""The dimensions as the program has them, in the order in which they lie in memory, the widest first."""


def program_order(ndim: int) -> Order:
    return tuple(range(ndim))


def places(dims: Sequence[int], order: Order) -> tuple[int, ...]:
    """The places in memory of dimensions of the program."""
    return tuple(order.index(d) for d in dims)


def without(order: Order, dims: Sequence[int]) -> Order:
    """The order that is left when dimensions are gone."""
    left = [d for d in order if d not in dims]
    return tuple(sorted(left).index(d) for d in left)


class Ordered:
    """A value whose dimensions may lie in memory in another order than the program's.

    Args:
        shape: as the program has it.
        forms: the arrays, by the order in which their dimensions are. There may be several of one value.
        make: what makes one in any order, of a value that costs nothing to make (a number, repeated); it has no forms
            until somebody asks.
        likes: the order in which such a value is best made, if that matters.

    Attributes:
        work: what it takes to compute an element of it anew, in simple operations, from what is stored.
    """

    __slots__ = ("_likes", "_make", "forms", "shape", "work")

    def __init__(
        self,
        shape: Sequence[int],
        forms: dict[Order, jax.Array],
        make: Callable[[Order], jax.Array] | None = None,
        likes: Order | None = None,
    ) -> None:
        self.shape, self.forms, self._make, self._likes = tuple(shape), forms, make, likes
        self.work = 0

    @classmethod
    def of(cls, array: jax.Array) -> Ordered:
        """An array as the program has it."""
        return cls(array.shape, {program_order(array.ndim): array})

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def order(self) -> Order | None:
        """The order in which it lies, if that is not the program's; the first one that was made."""
        first = self._likes or next(iter(self.forms), None)
        return None if first == program_order(self.ndim) else first

    def array(self, order: Order | None = None) -> jax.Array:
        """The array in an order, by default the program's; made when it is first asked for."""
        order = program_order(self.ndim) if order is None else order
        if order not in self.forms:
            if self._make is not None:
                self.forms[order] = self._make(order)
            else:
                have, array = next(iter(self.forms.items()))
                permutation = places(order, have)
                if self.work >= _WORK_TO_STORE and is_float(array.dtype) and array.size:
                    self.forms[order] = stored(lambda a: lax.transpose(a, permutation), array)
                else:
                    self.forms[order] = lax.transpose(array, permutation)
        return self.forms[order]

    def transposed(self, permutation: Sequence[int]) -> Ordered:
        """`lax.transpose` of it: the same memory."""
        at = {d: i for i, d in enumerate(permutation)}
        shape = [self.shape[d] for d in permutation]

        def moved(order: Order) -> Order:
            return tuple(at[d] for d in order)

        if self._make is None:
            return Ordered(shape, {moved(order): array for order, array in self.forms.items()})
        make = self._make
        likes = None if self._likes is None else moved(self._likes)
        return Ordered(shape, {}, lambda order: make(tuple(permutation[d] for d in order)), likes)
