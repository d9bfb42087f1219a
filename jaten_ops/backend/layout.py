"""Strides of a graph's outputs: the executable produces them in physical order, and they are returned as views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.export import is_symbolic_dim

from jaten_ops.arrays.strides import row_major
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.ops.symbolic_sizes import dimension_of


@dataclass(frozen=True)
class StridedLayout:
    """A layout that is not contiguous: permuted, expanded, or with gaps, but without overlapping elements.

    Attributes:
        order: the dimensions by decreasing stride: the order in memory.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]

    def store(self, array: jax.Array) -> jax.Array:
        """The memory of the tensor as a flat array: each element once in its place, and zeros in the gaps."""
        # a dimension of size 1 or stride 0 holds one element
        strides = [0 if size == 1 else stride for size, stride in zip(self.sizes, self.strides, strict=True)]
        first = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
        memory = jnp.transpose(array[first], self.order)[..., None]
        for d in reversed(self.order):
            used, stride = memory.shape[-1], max(strides[d], memory.shape[-1])
            gap = [(0, 0, 0)] * (memory.ndim - 1) + [(0, stride - used, 0)]
            memory = lax.pad(memory, jnp.zeros((), memory.dtype), gap) if stride > used else memory
            *outer, size, _ = memory.shape
            memory = memory.reshape(*outer, size * stride)[..., : (size - 1) * stride + used]
        return memory

    def laid_out(self, memory: torch.Tensor) -> torch.Tensor:
        """The stored tensor, which nothing else holds, with the sizes and strides; for autograd it is not a view."""
        return memory.as_strided_(self.sizes, self.strides)


def strided_layout_of(sizes: Sequence[int], strides: Sequence[int]) -> StridedLayout | None:
    """The layout of these strides; None if they are contiguous, or if elements overlap, so that a copy is needed."""
    if 0 in sizes:
        return None
    if all(
        size == 1 or stride == want for size, stride, want in zip(sizes, strides, row_major(tuple(sizes)), strict=True)
    ):
        return None
    order = tuple(sorted(range(len(sizes)), key=lambda d: -strides[d]))
    used = 1
    for d in reversed(order):
        if strides[d] and sizes[d] > 1:
            if strides[d] < used:
                return None
            used += (sizes[d] - 1) * strides[d]
    return StridedLayout(tuple(sizes), tuple(strides), order)


def concretize(value: Any, symbols: Mapping[Any, int]) -> Any:
    """The value of a size or another number of the graph, for given values of its symbols."""
    kind = _NUMBERS.get(type(value))
    if kind is int and any(map(is_symbolic_dim, symbols.values())):
        return evaluated_size(value.node.expr, symbols)
    return value if kind is None else kind(value.node.expr.subs(symbols))


def concretized(sizes: Iterable[Any], symbols: Mapping[Any, int]) -> tuple[int, ...]:
    """`concretize` for sizes alone, in a hundredth of the time."""
    return tuple([s if isinstance(s, int) else _quickly(s.node.expr, symbols) for s in sizes])


def _quickly(expr: Any, symbols: Mapping[Any, int]) -> int:
    try:
        return int(dimension_of(expr, symbols.__getitem__))
    except KeyError:  # an operation that has no words there
        return int(expr.subs(symbols))


_NUMBERS: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def evaluated_size(expr: Any, values: Mapping[Any, Any]) -> Any:
    """The value of an expression of sizes, some of which an exported program leaves open.

    Raises:
        UnsupportedInputError: an expression that JAX's dimensions do not have.
    """

    def known(part: Any) -> Any:
        if part not in values:
            raise UnsupportedInputError("a size of an exported program", str(expr), "sums, products and // of sizes")
        return values[part]

    return dimension_of(expr, known)


def has_symbolic_size(value: Any) -> bool:
    """True for a symbolic size, and for a tensor with one."""
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def is_symbolic(value: Any) -> bool:
    """`has_symbolic_size` for other numbers, too."""
    return has_symbolic_size(value) or isinstance(value, torch.SymFloat | torch.SymBool)


def symbols_of(values: Sequence[Any], taken: Sequence[Any]) -> dict[Any, int]:
    """The value of each symbol that is an input by itself or the size of one, and of what is made of other symbols.

    A part of a graph may take such an expression, as `min(8, n)`, without taking the size `n`.

    Args:
        values: the inputs as the graph has them, with symbolic sizes.
        taken: the inputs of a call.
    """
    found: dict[Any, int] = {}
    composed: dict[Any, int] = {}
    for value, given in zip(values, taken, strict=True):
        is_tensor = isinstance(value, torch.Tensor)
        pairs: list[Any] = list(zip(value.shape, given.shape, strict=True)) if is_tensor else [(value, given)]
        for symbolic, concrete in pairs:
            if isinstance(symbolic, torch.SymInt | torch.SymFloat):
                expr = symbolic.node.expr
                (found if expr.is_symbol else composed)[expr] = concrete
    return found | {expr: n for expr, n in composed.items() if not expr.free_symbols <= found.keys()}


def geometry_of(value: Any) -> tuple[Any, ...]:
    """Sizes, strides and offset of a tensor; a number alone."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, *value.stride(), value.storage_offset())
    return (value,)


def expressions_of(numbers: Iterable[Any]) -> list[Any]:
    """The expressions of those that may change."""
    return [n.node.expr for n in numbers if isinstance(n, torch.SymInt)]
