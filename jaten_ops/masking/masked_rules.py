"""The rules of `masked_run` for operations on elements, for reductions, and for moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from ..xla.equations import ELEMENTWISE
from .masked_run import MaskedStep, masked_rule
from .masked_values import Masked, NotMasked, OpenAxis, padded_array, same


@masked_rule(*ELEMENTWISE)
def _each_element(step: MaskedStep) -> Sequence[Any]:
    operands, axes = list(step.operands), []
    for d, size in enumerate(step.shape()):
        # an operand may be a number, or have size 1
        places = [d if s and not same(s[d], 1) else None for s in map(step.in_shape, range(len(operands)))]
        operands, axis = step.masks.aligned(operands, places)
        axes.append(axis if is_symbolic_dim(size) else step.masks.first(size))
    arrays = list(map(padded_array, operands))
    return [step.of(step.bind(arrays)[0], axes)]


@masked_rule("optimization_barrier", "in_order")
def _unchanged(step: MaskedStep) -> Sequence[Any]:
    arrays = step.bind([step.array(i) for i in range(len(step.operands))])
    pairs = zip(step.operands, arrays, strict=True)
    return [replace(v, array=a) if isinstance(v, Masked) else a for v, a in pairs]


@masked_rule("bitcast_convert_type")
def _reinterpret(step: MaskedStep) -> Sequence[Any]:
    axes, more = list(step.masks.axes(step.operands[0])), len(step.shape()) - len(step.in_shape(0))
    # the parts of a longer number are a dimension behind the others
    axes = [*axes, step.masks.first(step.shape()[-1])] if more > 0 else axes[: len(axes) + more]
    return [step.of(step.bind([step.array(0)])[0], axes)]


@masked_rule("dim_as_value")
def _size(step: MaskedStep) -> Sequence[Any]:
    dtype = step.equation.outvars[0].aval.dtype
    return [lax.convert_element_type(step.sizes.number(step.params["dim"]), dtype)]


@masked_rule("broadcast_in_dim")
def _repeat(step: MaskedStep) -> Sequence[Any]:
    value, places, shape = step.operands[0], step.params["broadcast_dimensions"], step.shape()
    axes: list[OpenAxis] = [None if is_symbolic_dim(s) else step.masks.first(s) for s in shape]
    for d, place in enumerate(places):
        if same(step.in_shape(0)[d], shape[place]):
            axes[place] = step.masks.axes(value)[d]
    return [step.of(lax.broadcast_in_dim(step.array(0), step.sizes.shape(shape), places), axes)]


@masked_rule("iota")
def _numbers(step: MaskedStep) -> Sequence[Any]:
    shape, along = step.shape(), step.params["dimension"]
    axes = [None if is_symbolic_dim(s) and d != along else step.masks.first(s) for d, s in enumerate(shape)]
    dtype = step.equation.outvars[0].aval.dtype
    return [step.of(lax.broadcasted_iota(dtype, step.sizes.shape(shape), along), axes)]


@masked_rule("reshape")
def _reshape(step: MaskedStep) -> Sequence[Any]:
    value, shape = step.operands[0], step.shape()
    if step.params.get("dimensions") is not None or not isinstance(value, Masked) or 0 in (*shape, *value.shape):
        raise NotMasked("lays elements out anew")
    return [step.masks.reshaped(value, shape)]


@masked_rule("transpose")
def _transpose(step: MaskedStep) -> Sequence[Any]:
    axes = step.masks.axes(step.operands[0])
    return [step.of(step.bind([step.array(0)])[0], [axes[d] for d in step.params["permutation"]])]


@masked_rule("squeeze", "expand_dims")
def _squeeze(step: MaskedStep) -> Sequence[Any]:
    axes, dims = list(step.masks.axes(step.operands[0])), step.params["dimensions"]
    if step.equation.primitive.name == "squeeze":
        axes = [a for d, a in enumerate(axes) if d not in dims]
    else:
        for d in sorted(dims):
            axes.insert(d, step.masks.first(1))
    return [step.of(step.bind([step.array(0)])[0], axes)]


# Reductions


def _smallest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, np.inexact) else np.iinfo(dtype).min


def _largest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, np.inexact) else np.iinfo(dtype).max


_NEUTRAL = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": _smallest,
    "min": _largest,
    "and": lambda dtype: True if dtype == np.bool_ else -1,
    "or": lambda dtype: 0,
    "xor": lambda dtype: 0,
    "logsumexp": _smallest,
}
"""Values that change no result of a reduction."""


@masked_rule(*(f"reduce_{name}" for name in ("sum", "prod", "max", "min", "and", "or", "xor")), "argmax", "argmin")
def _reduce(step: MaskedStep) -> Sequence[Any]:
    value, axes = step.operands[0], step.params["axes"]
    name = step.equation.primitive.name
    if name.startswith("arg"):
        for axis in axes:
            value = step.masks.leading(value, axis)
    neutral = _NEUTRAL[name.removeprefix("reduce_").removeprefix("arg")](step.equation.invars[0].aval.dtype)
    value = step.masks.filled(value, axes, neutral)
    left = [a for d, a in enumerate(step.masks.axes(value)) if d not in axes]
    return [step.of(step.bind([value.array])[0], left)]


@masked_rule("reduce")
def _reduce_by(step: MaskedStep) -> Sequence[Any]:
    count, dims = len(step.operands) // 2, step.params["dimensions"]
    step.only(*range(count))
    operands, axes = list(step.operands[:count]), []
    for d in range(len(step.in_shape(0))):
        operands, axis = step.masks.aligned(operands, [d] * count)
        axes.append(axis)
    # the start is neutral, as XLA asks of it
    starts = step.operands[count:]
    arrays = [step.masks.filled(v, dims, start).array for v, start in zip(operands, starts, strict=True)]
    left = [a for d, a in enumerate(axes) if d not in dims]
    return [step.of(a, left, i) for i, a in enumerate(step.bind([*arrays, *starts]))]


@masked_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulate(step: MaskedStep) -> Sequence[Any]:
    axis, name = step.params["axis"], step.equation.primitive.name
    if name == "cumlogsumexp" and jnp.issubdtype(step.equation.invars[0].aval.dtype, np.complexfloating):
        raise NotMasked("adds phases, whose full turns are those of the order of the sums")
    value = step.masks.leading(step.operands[0], axis)
    if step.params["reverse"]:
        neutral = _NEUTRAL[name.removeprefix("cum")]
        value = step.masks.filled(value, [axis], neutral(step.equation.invars[0].aval.dtype))
    return [step.of(step.bind([value.array])[0], value.axes)]


@masked_rule("sort")
def _sort(step: MaskedStep) -> Sequence[Any]:
    operands, along, axes = list(step.operands), step.params["dimension"], []
    for d in range(len(step.shape())):
        if d == along:
            operands = [step.masks.leading(v, d) for v in operands]
        operands, axis = step.masks.aligned(operands, [d] * len(operands))
        axes.append(axis)
    arrays = [v.array for v in operands]
    if not is_symbolic_dim(step.shape()[along]):
        return [step.of(a, axes, i) for i, a in enumerate(step.bind(arrays))]
    there = step.masks.there(step.masks.first(step.shape()[along]))
    behind = lax.broadcast_in_dim(~there, arrays[0].shape, [along])
    stable, keys = step.params["is_stable"], step.params["num_keys"]
    _, *found = lax.sort((behind, *arrays), dimension=along, is_stable=stable, num_keys=keys + 1)
    return [step.of(a, axes, i) for i, a in enumerate(found)]


@masked_rule("top_k")
def _top(step: MaskedStep) -> Sequence[Any]:
    value = step.operands[0]
    axis = step.params.get("operand_axis", step.params.get("axis", -1)) % len(value.shape)
    if is_symbolic_dim(step.params["k"]):
        raise NotMasked("takes a number of elements that is open")
    value = step.masks.leading(value, axis)
    value = step.masks.filled(value, [axis], _smallest(value.array.dtype))
    axes = list(value.axes)
    axes[axis] = step.masks.first(step.params["k"])
    return [step.of(a, axes, i) for i, a in enumerate(step.bind([value.array]))]


@masked_rule("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _windows(step: MaskedStep) -> Sequence[Any]:
    value, params = step.operands[0], step.params
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    for d, size in enumerate(value.shape):
        whole = all((params.get(n) or (1,) * (d + 1))[d] == 1 for n in names)
        if is_symbolic_dim(size) and not (whole and tuple(params["padding"][d]) == (0, 0)):
            raise NotMasked("slides a window over an open dimension")
    axes = [a if is_symbolic_dim(s) else step.masks.first(s) for a, s in zip(value.axes, step.shape(), strict=True)]
    return [step.of(step.bind([value.array])[0], axes)]


# Products


@masked_rule("dot_general")
def _product(step: MaskedStep) -> Sequence[Any]:
    (left, right), (contracted, batch) = step.operands, step.params["dimension_numbers"]
    for pair in (*zip(*contracted, strict=True), *zip(*batch, strict=True)):
        (left, right), _ = step.masks.aligned([left, right], pair)
    axes: list[OpenAxis] = []
    for a, b in zip(*batch, strict=True):
        axes.append(step.masks.axes(left)[a] or step.masks.axes(right)[b])
    for value, of_sum, of_batch in zip((left, right), contracted, batch, strict=True):
        axes += [a for d, a in enumerate(step.masks.axes(value)) if d not in (*of_sum, *of_batch)]
    (left, right), axes = _with_known_places(step, left, right, contracted), axes
    return [step.of(step.bind([padded_array(left), padded_array(right)])[0], axes)]


def _with_known_places(step: MaskedStep, left: Any, right: Any, contracted: Any) -> tuple[Any, Any]:
    """The operands with zeros where there are no products to add: in both, since 0 times NaN is NaN."""
    for a, b in zip(*contracted, strict=True):
        pair = step.masks.aligned([left, right], (a, b))[1]
        if pair is None:  # nothing changes along it in either
            pair = step.masks.first(left.shape[a]) if isinstance(left, Masked) else None
        left, right = (_known(step, v, d, pair) for v, d in ((left, a), (right, b)))
    return step.masks.filled(left, contracted[0], 0), step.masks.filled(right, contracted[1], 0)


def _known(step: MaskedStep, value: Any, axis: int, places: OpenAxis) -> Any:
    if not isinstance(value, Masked) or value.axes[axis] is not None:
        return value
    return replace(value, axes=(*value.axes[:axis], places, *value.axes[axis + 1 :]))
