"""The rules of `padding_proof`: the place of the rows in an operation's results, from that in its operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.extend import core

from jaten_ops.cpu.conv_primitive import convolution_p
from jaten_ops.xla.equations import ELEMENTWISE

from .padding_proof import KNOWING, Columns, EquationPair, Fact, NotProved, Rows, State, join, rule, without_fact

_MIXES = "adds up, or compares, rows"


def _only(step: EquationPair, *operands: int) -> None:
    """Requires that no other operand has rows, such as an index or a number to pad with."""
    if any(s is not None for i, s in enumerate(step.operands) if i not in operands):
        raise NotProved("depends as a whole on what is in the rows")


def _first(step: EquationPair) -> Rows:
    """The rows of the first operand; no other may have any."""
    _only(step, 0)
    state = step.operands[0]
    if state is None:
        raise NotProved("makes rows in a way that is not known")
    if state.axis < 0:
        without_fact(state)  # raises
    return replace(state, fact=None) if isinstance(state.fact, Columns) else state


def _without(state: Rows, removed: Sequence[int]) -> Rows:
    """The rows after other dimensions are removed."""
    return replace(state, axis=state.axis - sum(d < state.axis for d in removed))


@rule(*ELEMENTWISE)
def _elementwise(step: EquationPair) -> Sequence[State]:
    for shape in map(step.shape, range(len(step.operands))):  # an operand may be a number, or have size 1
        fits = len(shape) == len(step.out_shape) and all(
            a in (1, b) for a, b in zip(shape, step.out_shape, strict=True)
        )
        if shape and not fits:
            raise NotProved("has operands of several shapes")
    known = _known(step)
    return [join(step.operands)] if known is None else known


KNOWING.update({"ge", "lt", "and", "add", "select_n", "convert_element_type", "broadcast_in_dim", "squeeze"})
KNOWING.update({"reshape", "transpose", "expand_dims", "slice", "reduce_and", "concatenate", "gather"})


def _known(step: EquationPair) -> Sequence[State] | None:
    """Facts about an operation's results, from those about row numbers, which are compared with the number of rows."""
    name, states = step.large.primitive.name, (*step.operands, None)
    facts = [s.fact if s is not None else None for s in states]
    literals = [np.asarray(v.val).item() if isinstance(v, core.Literal) else None for v in step.large.invars]
    if name == "convert_element_type" and facts[0] is Fact.OWN:
        dtype = step.params["new_dtype"]
        return [states[0]] if dtype.kind == "i" and dtype.itemsize >= 4 else None
    if name == "select_n" and (facts[0] in (Fact.TRUE, Fact.FALSE) or isinstance(literals[0], bool)):
        return [states[2 if facts[0] is Fact.TRUE or literals[0] else 1]]
    if name == "add" and any(s is not None and s.differs() for s in states):
        rows = join([s for s in states if s is not None and not s.differs()])
        return [replace(rows or Rows(-1), fact=Fact.OTHER)]
    if name == "and" and facts[:2] == [Fact.TRUE] * 2:
        return [replace(join(states[:2]) or Rows(-1), fact=Fact.TRUE)]
    return _compared(step, name, facts, literals[-1]) if name in ("ge", "lt") and facts[0] is Fact.OWN else None


def _compared(step: EquationPair, name: str, facts: Sequence[Any], literal: Any) -> Sequence[State] | None:
    """Row numbers compared with zero and with the number of rows."""
    state, zero = step.operands[0], type(literal) is not bool and literal == 0 and facts[1] is None
    assert state is not None
    if facts[1] is (Fact.MINUS_COUNT if name == "ge" else Fact.COUNT) or (zero and name == "ge"):
        return [replace(state, fact=Fact.TRUE)]
    return [replace(state, fact=Fact.FALSE)] if zero else None


@rule("optimization_barrier", "in_order")
def _unchanged(step: EquationPair) -> Sequence[State]:
    return step.operands


@rule("broadcast_in_dim")
def _broadcast(step: EquationPair) -> Sequence[State]:
    (state, *_), axis, places = step.operands, step.varying[0], step.params["broadcast_dimensions"]
    if state is None:
        return [None if axis is None else Rows(axis, None, None)]
    if state.axis < 0 or isinstance(state.fact, Columns):
        state = without_fact(state) or state
    return [replace(state, axis=places[state.axis])]


@rule("iota")
def _iota(step: EquationPair) -> Sequence[State]:
    (axis,), along = step.varying, step.params["dimension"]
    if axis is None or axis != along:
        return [None if axis is None else Rows(axis, None, None)]
    inner = step.out_shape[axis] // step.walk.padded
    return [Rows(axis, 1, inner, indexed=True, fact=Fact.OWN if inner == 1 else None)]


@rule("reshape")
def _reshape(step: EquationPair) -> Sequence[State]:
    state, axis, old, new = _first(step), step.varying[0], step.shape(0), step.out_shape
    if axis is None or 0 in new or step.params.get("dimensions") is not None:
        raise NotProved("lays rows out anew")
    above, below = math.prod(old[: state.axis]), math.prod(new[:axis])
    if state.outer is None or state.inner is None:
        if (above, old[state.axis]) == (below, new[axis]):
            return [replace(state, axis=axis)]
        state = replace(state, outer=1, inner=old[state.axis] // step.walk.padded)
    outer, rest = divmod(above * (state.outer or 1), below)
    if rest or not outer or new[axis] % (outer * step.walk.padded):
        raise NotProved("lays rows out anew")
    inner = new[axis] // (outer * step.walk.padded)
    return [Rows(axis, outer, inner, state.indexed, state.fact)]


@rule("transpose")
def _transpose(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    return [replace(state, axis=step.params["permutation"].index(state.axis))]


@rule("squeeze")
def _squeeze(step: EquationPair) -> Sequence[State]:
    return [_without(_first(step), step.params["dimensions"])]


@rule("expand_dims")
def _expand_dims(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    kept = [d for d in range(len(step.out_shape)) if d not in step.params["dimensions"]]
    return [replace(state, axis=kept[state.axis])]


@rule("reduce_sum", "reduce_prod", "reduce_xor", "argmax", "argmin")
def _reduce(step: EquationPair) -> Sequence[State]:
    state, axes = _first(step), step.params["axes"]
    if state.axis in axes:
        raise NotProved(_MIXES)
    return [_without(state, axes)]


@rule("reduce_max", "reduce_min", "reduce_and", "reduce_or")
def _reduce_idempotent(step: EquationPair) -> Sequence[State]:
    """Copies of the first row do not change a maximum, or whether a condition holds for all rows."""
    state, axes = _first(step), step.params["axes"]
    if state.axis not in axes:
        return [without_fact(_without(state, axes))]
    if state.differs() or (state.indexed and state.fact is not Fact.TRUE):
        raise NotProved(_MIXES)
    return [None]


@rule("reduce")
def _reduce_generic(step: EquationPair) -> Sequence[State]:
    count = len(step.operands) // 2
    _only(step, *range(count))
    state = join(step.operands[:count])
    if state is None or state.axis in step.params["dimensions"]:
        raise NotProved(_MIXES)
    return [_without(state, step.params["dimensions"])] * len(step.large.outvars)


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulate(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    if step.params["axis"] == state.axis:
        raise NotProved(_MIXES)
    return [state]


@rule("sort", "top_k")
def _sort(step: EquationPair) -> Sequence[State]:
    state = join(step.operands)
    along = step.params.get("dimension", step.params.get("axis", step.params.get("operand_axis", -1)))
    if state is None or along % len(step.shape(0)) == state.axis:
        raise NotProved("sorts rows")
    return [state] * len(step.large.outvars)


@rule("split")
def _split(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    if step.params["axis"] == state.axis:
        raise NotProved("takes single rows out")
    return [state] * len(step.large.outvars)


@rule("unstack")
def _unstack(step: EquationPair) -> Sequence[State]:
    state, axis = _first(step), step.params["axis"]
    if axis == state.axis:
        raise NotProved("takes single rows out")
    return [_without(state, [axis])] * len(step.large.outvars)


@rule("stack")
def _stack(step: EquationPair) -> Sequence[State]:
    state = join(step.operands)
    if state is None or None in step.operands:
        raise NotProved("puts something beside rows")
    return [replace(state, axis=state.axis + (step.params["axis"] <= state.axis))]


@rule("rev")
def _rev(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    if state.axis in step.params["dimensions"]:
        raise NotProved("turns the order of rows round")
    return [state]


@rule("pad")
def _pad(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    if tuple(step.params["padding_config"][state.axis]) != (0, 0, 0):
        raise NotProved("puts something between or beside rows")
    return [state]


@rule("concatenate")
def _concatenate(step: EquationPair) -> Sequence[State]:
    state = join(step.operands)
    if state is None or step.params["dimension"] == state.axis:
        raise NotProved("puts something beside rows")
    own = [s is not None and s.fact is Fact.OWN for s in step.operands]
    is_last = step.params["dimension"] == len(step.out_shape) - 1
    if not any(own) or not is_last or any(step.shape(i)[-1] != 1 for i in range(len(own))):
        return [state]
    indexed = any(s is not None and s.indexed for s, is_own in zip(step.operands, own, strict=True) if not is_own)
    return [replace(state, fact=Columns(tuple(own), indexed))]


@rule("slice")
def _slice(step: EquationPair) -> Sequence[State]:
    state, params = step.operands[0], step.params
    axis = step.varying[0] if state is None else state.axis
    if axis is None or params["start_indices"][axis] != 0 or (params["strides"] or (1,) * (axis + 1))[axis] != 1:
        raise NotProved("takes single rows out")
    if state is None:  # the beginning of a table, for example of positions
        return [Rows(axis, 1, step.out_shape[axis] // step.walk.padded, indexed=True)]
    if not step.is_whole(axis, lambda e: e.params["limit_indices"][axis]):
        raise NotProved("takes single rows out")
    return [_first(step)]


@rule("dynamic_slice")
def _dynamic_slice(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    if not step.is_whole(state.axis, lambda e: e.params["slice_sizes"][state.axis]):
        raise NotProved("takes single rows out")
    return [state]


@rule("dynamic_update_slice")
def _dynamic_update_slice(step: EquationPair) -> Sequence[State]:
    _only(step, 0, 1)
    state = join(step.operands[:2])
    if state is None or not step.is_whole(state.axis, lambda e: e.invars[1].aval.shape[state.axis]):
        raise NotProved("writes to single rows")
    return [state]


@rule("dot_general")
def _dot(step: EquationPair) -> Sequence[State]:
    (left, right), ((contracted, batch)) = step.operands, step.params["dimension_numbers"]
    for state, axes in zip((left, right), contracted, strict=True):
        if state is not None and state.axis in axes:
            raise NotProved("adds up products of rows")
    if left is not None and left.axis in batch[0]:
        if right is None or right.axis not in batch[1]:
            raise NotProved("multiplies rows with something else")
        places = batch[0].index(left.axis), batch[1].index(right.axis)
        joined = join([replace(s, axis=p) for s, p in zip((left, right), places, strict=True)])
        return [joined]
    if left is not None and right is not None:
        raise NotProved("makes pairs of rows")
    free = [[d for d in range(len(step.shape(i))) if d not in (*contracted[i], *batch[i])] for i in range(2)]
    if left is not None:
        return [replace(left, axis=len(batch[0]) + free[0].index(left.axis))]
    assert right is not None
    if right.axis in batch[1]:
        raise NotProved("multiplies rows with something else")
    return [replace(right, axis=len(batch[0]) + len(free[0]) + free[1].index(right.axis))]


@rule("conv_general_dilated")
def _convolve(step: EquationPair) -> Sequence[State]:
    state, numbers = _first(step), step.params["dimension_numbers"]
    if state.axis != numbers.lhs_spec[0] or step.params["batch_group_count"] != 1:
        raise NotProved("convolves over rows")
    return [replace(state, axis=numbers.out_spec[0])]


@rule(convolution_p.name)
def _convolve_on_cpu(step: EquationPair) -> Sequence[State]:
    state, (small, large) = _first(step), (e.params["call"] for e in (step.small, step.large))
    if large.part == "weight_gradient" or state.axis != 0:
        raise NotProved("convolves over rows")
    if (small.part, small.windows, small.shape[1:]) != (large.part, large.windows, large.shape[1:]):
        raise NotProved("computes with the number of rows (a convolution's windows)")
    return [state]


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def _reduce_window(step: EquationPair) -> Sequence[State]:
    count = len(step.large.outvars)
    _only(step, *range(count))
    state, params = join(step.operands[:count]), step.params
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    if (
        state is None
        or any((params[n] or (1,) * (state.axis + 1))[state.axis] != 1 for n in names)
        or tuple(params["padding"][state.axis]) != (0, 0)
    ):
        raise NotProved(_MIXES)
    return [state] * count


@rule("fft")
def _fft(step: EquationPair) -> Sequence[State]:
    state = _first(step)
    if state.axis >= len(step.shape(0)) - len(step.params["fft_lengths"]):
        raise NotProved("transforms over rows")
    return [state]


def _window_dims(step: EquationPair, removed: Sequence[int]) -> list[int]:
    return [d for d in range(len(step.shape(0))) if d not in removed]


def _columns(index: State) -> Columns | None:
    """Facts about the indices of a gather."""
    if index is not None and index.fact is Fact.OWN:
        return Columns((True,), indexed=False)
    return index.fact if index is not None and isinstance(index.fact, Columns) else None


@rule("gather")
def _gather(step: EquationPair) -> Sequence[State]:
    (table, index), numbers = step.operands, step.params["dimension_numbers"]
    columns = _columns(index)
    table, index = without_fact(table), without_fact(index)
    among_indices = [d for d in range(len(step.out_shape)) if d not in numbers.offset_dims]
    if index is None:
        window = _window_dims(step, (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims))
        if (
            table is None
            or table.axis not in window
            or not step.is_whole(table.axis, lambda e: e.params["slice_sizes"][table.axis])
        ):
            raise NotProved("takes single rows out")
        return [replace(table, axis=numbers.offset_dims[window.index(table.axis)])]
    if index.axis == len(step.shape(1)) - 1:
        raise NotProved("takes elements where rows say")
    place = among_indices[index.axis]
    if table is None:
        return [replace(index, axis=place)]
    is_plain = step.shape(0)[table.axis] == step.walk.padded
    if columns is not None and is_plain and table.axis in numbers.start_index_map:
        at = numbers.start_index_map.index(table.axis)
        if columns.own[at] and table.axis in numbers.collapsed_slice_dims:
            return [join([replace(table, axis=place), replace(index, axis=place, indexed=columns.indexed)])]
    batch = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    if batch.get(table.axis) != index.axis:
        raise NotProved("may take elements of other rows")
    return [join([replace(table, axis=place), replace(index, axis=place)])]


@rule(
    "scatter",
    "scatter-add",
    "scatter_add",
    "scatter_mul",
    "scatter_min",
    "scatter_max",
    "scatter-mul",
    "scatter-min",
    "scatter-max",
)
def _scatter(step: EquationPair) -> Sequence[State]:
    (table, index, updates), numbers = step.operands, step.params["dimension_numbers"]
    if table is None or updates is None:
        raise NotProved("puts rows where others may be")
    update_dims = range(len(step.shape(2)))
    if index is None:
        window = _window_dims(step, (*numbers.inserted_window_dims, *numbers.operand_batching_dims))
        if table.axis not in window:
            raise NotProved("writes to single rows")
        place = numbers.update_window_dims[window.index(table.axis)]
        if not step.is_whole(table.axis, lambda e: e.invars[2].aval.shape[place]):
            raise NotProved("writes to single rows")
    else:
        batch = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
        if batch.get(table.axis) != index.axis:
            raise NotProved("may write to other rows")
        place = [d for d in update_dims if d not in numbers.update_window_dims][index.axis]
    if updates.axis != place:
        raise NotProved("puts rows where others may be")
    return [join([table, replace(updates, axis=table.axis), *([replace(index, axis=table.axis)] if index else [])])]
