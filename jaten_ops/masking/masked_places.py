"""The rules of `masked_run` for parts of arrays: slices, writes, and what is put side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from .masked_run import MaskedStep, masked_rule
from .masked_values import Masked, NotMasked, OpenAxis, padded_array, same


def _aligned_but(step: MaskedStep, operands: Sequence[Any], along: int) -> tuple[list[Any], list[OpenAxis]]:
    """Operands with their elements in the same places of all dimensions but one, in which they come first."""
    found, axes = [step.masks.leading(v, along) for v in operands], []
    for d, size in enumerate(step.shape()):
        axis: OpenAxis = step.masks.first(size)
        if d != along:
            found, axis = step.masks.aligned(found, [d] * len(found))
            axis = axis if is_symbolic_dim(size) else step.masks.first(size)
        axes.append(axis)
    return found, axes


def _at(start: Any, axis: int, ndim: int) -> list[Any]:
    return [jnp.asarray(start if d == axis else 0, np.int64) for d in range(ndim)]


@masked_rule("concatenate")
def _concatenate(step: MaskedStep) -> Sequence[Any]:
    along, shape = step.params["dimension"], step.shape()
    operands, axes = _aligned_but(step, step.operands, along)
    arrays = list(map(padded_array, operands))
    if not is_symbolic_dim(shape[along]):
        return [step.of(step.bind(arrays)[0], axes)]
    # each is written over what stands behind the elements of the one before
    behind = list(step.sizes.shape(shape))
    behind[along] -= arrays[0].shape[along]
    result = jnp.concatenate([arrays[0], jnp.zeros(behind, arrays[0].dtype)], along)
    start: Any = step.in_shape(0)[along]
    for i, array in enumerate(arrays[1:], 1):
        result = lax.dynamic_update_slice(result, array, _at(step.sizes.given(start), along, result.ndim))
        start = start + step.in_shape(i)[along]
    return [step.of(result, axes)]


@masked_rule("pad")
def _pad(step: MaskedStep) -> Sequence[Any]:
    value, fill = step.operands
    step.only(0)
    axes: list[OpenAxis] = list(step.masks.axes(value))
    for d, (low, high, inside) in enumerate(step.params["padding_config"]):
        if not is_symbolic_dim(step.shape()[d]):
            if is_symbolic_dim(step.in_shape(0)[d]):
                raise NotMasked("cuts an open dimension to a fixed size")
            axes[d] = step.masks.first(step.shape()[d])
            continue
        if inside or is_symbolic_dim(low):
            raise NotMasked("puts something between elements of an open dimension, or an open number of them before it")
        if (low, high) == (0, 0):
            continue
        value = step.masks.filled(step.masks.leading(value, d), [d], fill)
        axes[d] = step.masks.first(step.shape()[d])
        if is_symbolic_dim(high):  # so that nothing that there is is cut
            step.sizes.assume(high)
    return [step.of(step.bind([padded_array(value), fill])[0], axes)]


@masked_rule("slice")
def _slice(step: MaskedStep) -> Sequence[Any]:
    value, params, shape = step.operands[0], step.params, step.shape()
    strides = params["strides"] or (1,) * len(shape)
    axes: list[OpenAxis] = []
    for d, (start, limit, stride) in enumerate(
        zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    ):
        size = step.in_shape(0)[d]
        if same(start, 0) and same(limit, size) and stride == 1:
            axes.append(step.masks.axes(value)[d])
            continue
        if is_symbolic_dim(stride):
            raise NotMasked("takes elements at distances that are open")
        value = _cut(step, step.masks.leading(value, d), d, start, limit)
        array = lax.slice_in_dim(padded_array(value), 0, None, stride, d)
        changed = (*value.shape[:d], shape[d], *value.shape[d + 1 :]) if isinstance(value, Masked) else ()
        value = replace(value, array=array, shape=changed) if isinstance(value, Masked) else array
        axes.append(step.masks.first(shape[d]))
    return [step.of(padded_array(value), axes)]


def _cut(step: MaskedStep, value: Any, axis: int, start: Any, limit: Any) -> Any:
    """The elements of a dimension from one number to another, of which one may be open."""
    array, length = padded_array(value), step.sizes.larger(limit - start)
    if is_symbolic_dim(start):
        step.sizes.given(limit)  # its value is not above that for the larger sizes
        array = lax.dynamic_slice_in_dim(array, step.sizes.given(start), length, axis)
    else:
        array = lax.slice_in_dim(array, int(start), int(start) + length, 1, axis)
    return replace(value, array=array) if isinstance(value, Masked) else array


def _starts(step: MaskedStep, given: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
    """Starts of a part of the first operand, within its elements."""
    found = []
    for d, (start, size) in enumerate(zip(given, sizes, strict=True)):
        whole = step.in_shape(0)[d]
        start = lax.convert_element_type(start, np.int64)
        if is_symbolic_dim(whole):
            step.sizes.assume(whole - size)
            start = jnp.clip(start, 0, step.sizes.given(whole - size))
        found.append(start)
    return found


@masked_rule("dynamic_slice")
def _dynamic_slice(step: MaskedStep) -> Sequence[Any]:
    step.only(0)
    value, sizes, axes = step.operands[0], step.params["slice_sizes"], []
    for d, size in enumerate(sizes):
        if same(size, step.in_shape(0)[d]):
            axes.append(step.masks.axes(value)[d])
        else:
            value = step.masks.leading(value, d)
            axes.append(step.masks.first(size))
    starts = _starts(step, step.operands[1 : 1 + len(sizes)], sizes)
    return [step.of(lax.dynamic_slice(padded_array(value), starts, step.sizes.shape(sizes)), axes)]


@masked_rule("dynamic_update_slice")
def _dynamic_update_slice(step: MaskedStep) -> Sequence[Any]:
    step.only(0, 1)
    value, part = step.operands[:2]
    sizes, axes = step.in_shape(1), []
    for d, size in enumerate(sizes):
        if same(size, step.in_shape(0)[d]):
            (value, part), axis = step.masks.aligned([value, part], (d, d))
            axes.append(axis)
        else:
            value, part = step.masks.leading(value, d), step.masks.leading(part, d)
            axes.append(step.masks.axes(value)[d])
    starts = _starts(step, step.operands[2:], sizes)
    array, written = padded_array(value), padded_array(part)
    there = jnp.ones((1,) * array.ndim, bool)
    for d, size in enumerate(sizes):
        if is_symbolic_dim(size) and not same(size, step.in_shape(0)[d]):
            there &= step.masks.there(step.masks.first(size)).reshape([-1 if n == d else 1 for n in range(array.ndim)])
    if there.size > 1:
        written = jnp.where(there, written, lax.dynamic_slice(array, starts, written.shape))
    return [step.of(lax.dynamic_update_slice(array, written, starts), axes)]


@masked_rule("rev")
def _reverse(step: MaskedStep) -> Sequence[Any]:
    value = step.operands[0]
    for d in step.params["dimensions"]:
        if not is_symbolic_dim(value.shape[d]):
            value = replace(value, array=lax.rev(value.array, (d,)))
            continue
        value = step.masks.leading(value, d)
        places = step.sizes.given(value.shape[d]) - 1 - lax.iota(np.int64, value.array.shape[d])
        value = replace(value, array=jnp.take(value.array, places, d, mode="clip"))
    return [value]


@masked_rule("split")
def _split(step: MaskedStep) -> Sequence[Any]:
    value, along, found = step.operands[0], step.params["axis"], []
    if is_symbolic_dim(step.in_shape(0)[along]):
        value = step.masks.leading(value, along)
    start: Any = 0
    for i, size in enumerate(step.params["sizes"]):
        axes = list(step.masks.axes(value))
        axes[along] = step.masks.first(size)
        found.append(step.of(padded_array(_cut(step, value, along, start, start + size)), axes, i))
        start = start + size
    return found


@masked_rule("stack")
def _stack(step: MaskedStep) -> Sequence[Any]:
    operands, axes = list(step.operands), []
    for d, size in enumerate(step.in_shape(0)):
        operands, axis = step.masks.aligned(operands, [d] * len(operands))
        axes.append(axis if is_symbolic_dim(size) else step.masks.first(size))
    axes.insert(step.params["axis"], step.masks.first(len(operands)))
    return [step.of(step.bind(list(map(padded_array, operands)))[0], axes)]


@masked_rule("unstack")
def _unstack(step: MaskedStep) -> Sequence[Any]:
    value, axis = step.operands[0], step.params["axis"]
    axes = [a for d, a in enumerate(value.axes) if d != axis]
    return [step.of(a, axes, i) for i, a in enumerate(step.bind([value.array]))]
