"""Rules of `gather` and `scatter`: elements at indices that are values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from .primitive_rules import NumpyStep, computed_by, dtype_of, interpreted_if, is_short


class _Window:
    """The elements of an operand that each index stands for.

    Args:
        shape: the operand's.
        sizes: the window's, for each dimension of the operand.
        window_dims: the dimensions of the result that are the window's, in order.
        dropped: the operand's dimensions that the result does not have.
        indexed: the operand's dimension for each number of an index.
        batches: pairs of a dimension of the operand and one of the indices that go together.
        rank: the result's.
    """

    def __init__(
        self,
        shape: Sequence[int],
        sizes: Sequence[int],
        window_dims: Sequence[int],
        dropped: Sequence[int],
        indexed: Sequence[int],
        batches: Sequence[tuple[int, int]],
        rank: int,
    ) -> None:
        self.shape, self.sizes, self.rank = shape, sizes, rank
        self._batch_dims = [d for d in range(rank) if d not in window_dims]
        self._indexed = {dim: number for number, dim in enumerate(indexed)}
        self._batches = dict(batches)
        gone = {*dropped, *self._batches}
        kept = [d for d in range(len(shape)) if d not in gone]
        self._window_dim = dict(zip(kept, window_dims, strict=True))

    def _along(self, values: Any, dims: Sequence[int]) -> Any:
        """Values whose dimensions are some of the result's, in a shape that broadcasts with the result."""
        shape = [1] * self.rank
        for dim, size in zip(dims, values.shape, strict=True):
            shape[dim] = size
        return values.reshape(shape)

    def places(self, indices: Any) -> tuple[tuple[Any, ...], Any]:
        """For each dimension of the operand the place of each element, and where the whole window is inside."""
        indices = np.asarray(indices).astype(np.int64)
        found, inside = [], self._along(np.ones(indices.shape[:-1], bool), self._batch_dims)
        for dim, (most, size) in enumerate(zip(self.shape, self.sizes, strict=True)):
            at: Any = np.zeros((1,) * self.rank, np.int64)
            if dim in self._indexed:
                at = self._along(indices[..., self._indexed[dim]], self._batch_dims)
                inside = inside & (at >= 0) & (at <= most - size)
                at = np.clip(at, 0, most - size)
            elif dim in self._batches:
                own = self._batch_dims[self._batches[dim]]
                at = self._along(np.arange(most), [own])
            if dim in self._window_dim:
                at = at + self._along(np.arange(size), [self._window_dim[dim]])
            found.append(at)
        return tuple(found), inside


def _mode(equation: Any) -> GatherScatterMode:
    interpreted_if(np.dtype(equation.invars[1].aval.dtype) != np.uint64)
    return GatherScatterMode.from_any(equation.params["mode"])


@computed_by("gather")
def _gathered(equation: Any) -> NumpyStep:
    numbers, fill, mode = equation.params["dimension_numbers"], equation.params["fill_value"], _mode(equation)
    fills = mode == GatherScatterMode.FILL_OR_DROP
    interpreted_if(not fills or fill is not None)
    interpreted_if(all(equation.invars[0].aval.shape) or not equation.outvars[0].aval.size)
    window = _Window(
        equation.invars[0].aval.shape,
        equation.params["slice_sizes"],
        numbers.offset_dims,
        numbers.collapsed_slice_dims,
        numbers.start_index_map,
        [*zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)],
        equation.outvars[0].aval.ndim,
    )
    shape, dtype = equation.outvars[0].aval.shape, dtype_of(equation)

    def take(operand: Any, indices: Any) -> Any:
        if 0 in shape:
            return np.empty(shape, dtype)
        places, inside = window.places(indices)
        found = operand[places] if places else np.broadcast_to(operand, shape)
        found = np.broadcast_to(found, shape)
        return np.where(inside, found, dtype.type(fill)) if fills else found

    return take


@computed_by("scatter", "scatter-add")
def _scattered(equation: Any) -> NumpyStep:
    """One update after the other, in their order; those of a window that is not inside are dropped."""
    numbers, mode, dtype = equation.params["dimension_numbers"], _mode(equation), dtype_of(equation)
    adds = equation.primitive.name == "scatter-add"
    interpreted_if(not (adds and (is_short(dtype) or dtype.kind not in "iuf")))
    shape, updates = equation.invars[0].aval.shape, equation.invars[2].aval
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    left = iter(numbers.update_window_dims)
    sizes = [1 if d in dropped else updates.shape[next(left)] for d in range(len(shape))]
    window = _Window(
        shape,
        sizes,
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
        [*zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)],
        updates.ndim,
    )
    drops = mode != GatherScatterMode.CLIP
    interpreted_if(shape)

    def put(operand: Any, indices: Any, values: Any) -> Any:
        result = np.array(operand)
        if not updates.size or not result.size:
            return result
        places, inside = window.places(indices)
        kept: Any = slice(None)
        if drops and not inside.all():
            kept = np.broadcast_to(inside, updates.shape).reshape(-1)
        at = tuple([np.broadcast_to(p, updates.shape).reshape(-1)[kept] for p in places])
        given = np.reshape(values, -1)[kept]
        if adds:
            np.add.at(result, at, given)
        else:
            result[at] = given
        return result

    return put
