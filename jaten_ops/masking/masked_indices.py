"""The rules of `masked_run` for elements that indices name: gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from jax.lax import GatherScatterMode

from .masked_run import MaskedStep, masked_rule
from .masked_values import NotMasked, OpenAxis, padded_array, same

_MODES = (GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)


def _within(step: MaskedStep, index: Any, columns: Sequence[int], lengths: Sequence[Any], mode: Any) -> Any:
    """Indices as they are for the elements that there are: those out of bounds of these stay so.

    Args:
        columns: the dimension of the first operand to which each column of the indices belongs.
        lengths: the length of a part in each dimension.
    """
    array = lax.convert_element_type(padded_array(index), np.int64)
    found = []
    for k, d in enumerate(columns):
        column, size = array[..., k], step.in_shape(0)[d]
        if is_symbolic_dim(size) and not same(size, lengths[d]):
            last = step.sizes.given(size - lengths[d])
            if mode is GatherScatterMode.FILL_OR_DROP:
                column = jnp.where((column >= 0) & (column <= last), column, step.sizes.larger(size))
            else:
                column = jnp.clip(column, 0, last)
        found.append(column)
    return jnp.stack(found, -1) if found else array


def _mode(step: MaskedStep) -> Any:
    mode = GatherScatterMode.from_any(step.params["mode"])
    if mode not in _MODES:
        raise NotMasked("treats indices in a way that is not known")
    return mode


@masked_rule("gather")
def _gather(step: MaskedStep) -> Sequence[Any]:
    (table, index), numbers, lengths = step.operands, step.params["dimension_numbers"], step.params["slice_sizes"]
    for d, along in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        (table, index), _ = step.masks.aligned([table, index], (d, along))
    window = [
        d for d in range(len(lengths)) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    ]
    for d, size in enumerate(step.in_shape(0)):
        if d not in numbers.operand_batching_dims and not same(size, lengths[d]):
            table = step.masks.leading(table, d)
    along_index = iter(_batch_axes(step, table, index, numbers))
    along_window = iter(
        [step.masks.axes(table)[d] if _is_whole(step, d) else step.masks.first(lengths[d]) for d in window]
    )
    axes = [next(along_window if d in numbers.offset_dims else along_index) for d in range(len(step.shape()))]
    mode = _mode(step)
    index = _within(step, index, numbers.start_index_map, lengths, mode)
    if mode is GatherScatterMode.PROMISE_IN_BOUNDS:  # which the indices that there are keep
        mode = GatherScatterMode.CLIP
    found = step.bind([padded_array(table), index], mode=mode, indices_are_sorted=False, unique_indices=False)
    return [step.of(found[0], axes)]


def _is_whole(step: MaskedStep, d: int) -> bool:
    return same(step.in_shape(0)[d], step.params["slice_sizes"][d])


def _batch_axes(step: MaskedStep, table: Any, index: Any, numbers: Any) -> list[OpenAxis]:
    """The dimensions of the indices but the last."""
    axes = list(step.masks.axes(index))[:-1]
    for d, along in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        axes[along] = axes[along] or step.masks.axes(table)[d]
    return axes


@masked_rule("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter_add", "scatter_mul",
             "scatter_min", "scatter_max")  # fmt: skip
def _scatter(step: MaskedStep) -> Sequence[Any]:
    (table, index, updates), numbers = step.operands, step.params["dimension_numbers"]
    window = [
        d for d in range(len(step.shape())) if d not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    ]
    lengths = [1] * len(step.shape())
    for d, u in zip(window, numbers.update_window_dims, strict=True):
        lengths[d] = step.in_shape(2)[u]
        if _covers(step, d, lengths):
            (table, updates), _ = step.masks.aligned([table, updates], (d, u))
    scattered = [u for u in range(len(step.in_shape(2))) if u not in numbers.update_window_dims]
    batch = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    there = jnp.ones((1,) * len(scattered), bool)
    for at, u in enumerate(scattered):
        if at in batch:
            (table, index, updates), axis = step.masks.aligned([table, index, updates], (batch[at], at, u))
        else:
            (index, updates), axis = step.masks.aligned([index, updates], (at, u))
        if is_symbolic_dim(size := step.in_shape(2)[u]):
            shape = [-1 if n == at else 1 for n in range(len(scattered))]
            there &= step.masks.there(axis or step.masks.first(size)).reshape(shape)
    for d in range(len(step.shape())):
        if d not in batch.values() and not _covers(step, d, lengths):
            table = step.masks.leading(table, d)
    index, mode = _dropped(step, index, there, lengths)
    how = {"mode": mode, "indices_are_sorted": False, "unique_indices": False}
    return [step.of(step.bind([padded_array(table), index, padded_array(updates)], **how)[0], step.masks.axes(table))]


def _dropped(step: MaskedStep, index: Any, there: Any, lengths: Sequence[Any]) -> tuple[Any, Any]:
    """The indices of a scatter, out of bounds where there is nothing to write, and how these are treated."""
    columns, mode = step.params["dimension_numbers"].scatter_dims_to_operand_dims, _mode(step)
    if any(is_symbolic_dim(size) and not _covers(step, d, lengths) for d, size in enumerate(lengths)):
        raise NotMasked("writes a part of an open size where indices say")
    index = _within(step, index, columns, lengths, mode)
    if there.size == 1:
        return index, mode
    if not columns:
        raise NotMasked("writes without an index")
    if mode is GatherScatterMode.CLIP:
        bounds = [step.sizes.larger(step.in_shape(0)[d]) - step.sizes.larger(lengths[d]) for d in columns]
        index = jnp.clip(index, 0, np.array(bounds, np.int64))
    outside = np.int64(max(step.sizes.shape(step.shape())))
    return jnp.where(there[..., None], index, outside), GatherScatterMode.FILL_OR_DROP


def _covers(step: MaskedStep, d: int, lengths: Sequence[Any]) -> bool:
    return same(step.in_shape(0)[d], lengths[d])
