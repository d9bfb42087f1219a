"""Slices whose start is an operand, so that another start does not recompile.

For direct calls; what a compiled graph does is in `backend.passes.traced_ints`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from ..interpreter import interpreted
from ..kernels.views import slice_bounds

_Part = tuple[int, int, int, bool]
"""A slice of one dimension: its start and length, and whether the dimension is removed."""


def _selected(shape: Sequence[int], dim: int, index: int) -> _Part | None:
    if not -len(shape) <= dim < len(shape) or not -shape[dim] <= index < shape[dim]:
        return None
    return dim % len(shape), index % shape[dim], 1, True


def _sliced(shape: Sequence[int], dim: int, start: int | None, end: int | None, step: int) -> _Part | None:
    if step != 1 or not -len(shape) <= dim < len(shape):
        return None
    begin, stop = slice_bounds(shape[dim], start, end)
    return dim % len(shape), begin, stop - begin, False


def _narrowed(shape: Sequence[int], dim: int, start: int, length: int) -> _Part | None:
    if not -len(shape) <= dim < len(shape) or length < 0 or not -shape[dim] <= start <= shape[dim]:
        return None
    begin = start + shape[dim] if start < 0 else start
    return (dim % len(shape), begin, length, False) if begin + length <= shape[dim] else None


_PARTS: dict[str, Callable[..., _Part | None]] = {
    "select.int": _selected,
    "select_copy.int": _selected,
    "slice.Tensor": _sliced,
    "slice_copy.Tensor": _sliced,
    "narrow_copy": _narrowed,
}
"""For each overload, the slice that a call takes of a shape; None leaves the call, and its errors, to the kernel."""


def _take(x: jax.Array, start: Any, dim: int, length: int, squeezed: bool) -> jax.Array:
    part = lax.dynamic_slice_in_dim(x, start, length, dim)
    return lax.squeeze(part, (dim,)) if squeezed else part


def _put(grad: jax.Array, start: Any, shape: tuple[int, ...], dtype: Any, dim: int, squeezed: bool) -> list[jax.Array]:
    part = lax.convert_element_type(lax.expand_dims(grad, (dim,)) if squeezed else grad, dtype)
    return [lax.dynamic_update_slice_in_dim(lax.full(shape, 0, dtype), part, start, dim)]


_taken = interpreted(_take, static_argnums=(2, 3, 4))
_placed = interpreted(_put, static_argnums=(2, 3, 4, 5))


def _of_kernel(part_of: Callable[..., _Part | None]) -> Callable[..., Any]:
    def run(x: jax.Array, *where: Any) -> Any:
        part = part_of(x.shape, *where)
        if part is None:
            return None
        dim, start, length, squeezed = part
        return _taken(x, np.int64(start), dim, length, squeezed)

    return run


def _of_gradient(part_of: Callable[..., _Part | None]) -> Callable[..., Any]:
    def run(grads: Sequence[jax.Array], mask: Sequence[bool], x: jax.Array, *where: Any) -> Any:
        part = part_of(x.shape, *where) if mask[0] else None
        if part is None:
            return None
        dim, start, _, squeezed = part
        return _placed(grads[0], np.int64(start), x.shape, x.dtype, dim, squeezed)

    return run


RUNS: dict[str, Callable[..., Any]] = {
    **{overload: _of_kernel(part_of) for overload, part_of in _PARTS.items()},
    **{
        f"{packet}_vjp{dot}{suffix}": _of_gradient(part_of)
        for (packet, dot, suffix), part_of in ((o.partition("."), p) for o, p in _PARTS.items())
    },
}
"""Functions that run an overload on its kernel's arguments; they return None for calls left to the kernel."""
