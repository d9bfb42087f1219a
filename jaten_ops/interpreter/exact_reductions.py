"""Rules of reductions, and of sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from .library_calls import SUMS, compiled_step
from .primitive_rules import NumpyStep, computed_by, dtype_of, interpreted_if, is_float_dtype

_WHOLE = {
    "reduce_sum": (np.add, 0),
    "reduce_prod": (np.multiply, 1),
    "reduce_and": (np.bitwise_and, -1),
    "reduce_or": (np.bitwise_or, 0),
    "reduce_xor": (np.bitwise_xor, 0),
}


@computed_by(*_WHOLE)
def _combined(equation: Any) -> NumpyStep:
    dtype, axes = dtype_of(equation), tuple(equation.params["axes"])
    if equation.primitive.name in SUMS and dtype.kind == "f":
        return compiled_step(equation)
    interpreted_if(dtype.kind in "iub" and equation.outvars[0].aval.dtype == dtype)
    combine, first = _WHOLE[equation.primitive.name]
    interpreted_if(dtype.kind != "b" or equation.primitive.name in ("reduce_and", "reduce_or", "reduce_xor"))
    start = np.array(first).astype(dtype)
    return lambda x: combine.reduce(x, axes, dtype, initial=start)


@computed_by("cumsum", "cumprod")
def _running(equation: Any) -> NumpyStep:
    dtype, axis, is_reversed = dtype_of(equation), equation.params["axis"], equation.params["reverse"]
    interpreted_if(dtype.kind in "iu")
    combine = np.add if equation.primitive.name == "cumsum" else np.multiply

    def run(x: Any) -> Any:
        return np.flip(combine.accumulate(np.flip(x, axis), axis, dtype), axis)

    return run if is_reversed else lambda x: combine.accumulate(x, axis, dtype)


@computed_by("reduce_max", "reduce_min")
def _extreme(equation: Any) -> NumpyStep:
    dtype, axes = dtype_of(equation), tuple(equation.params["axes"])
    interpreted_if(dtype.kind in "iuf" and equation.params.get("out_sharding") is None)
    is_largest = equation.primitive.name == "reduce_max"
    combine = np.maximum if is_largest else np.minimum
    if is_float_dtype(dtype):
        start = dtype.type(-np.inf if is_largest else np.inf)
    else:
        start = dtype.type(np.iinfo(dtype).min if is_largest else np.iinfo(dtype).max)
    return lambda x: combine.reduce(x, axes, initial=start)


@computed_by("argmax", "argmin")
def _place(equation: Any) -> NumpyStep:
    (axis,), dtype = equation.params["axes"], np.dtype(equation.params["index_dtype"])
    interpreted_if(dtype_of(equation).kind in "iufb")
    find = np.argmax if equation.primitive.name == "argmax" else np.argmin
    return lambda x: find(x, axis).astype(dtype)


@computed_by("sort")
def _sorted(equation: Any) -> NumpyStep:
    """By the first operands, the keys. NaN comes last, and zeros are equal."""
    axis, keys = equation.params["dimension"], equation.params["num_keys"]
    interpreted_if(keys == 1 and (equation.params["is_stable"] or len(equation.invars) == 1))
    interpreted_if(dtype_of(equation).kind in "iufb")

    def sort(*operands: Any) -> Any:
        order = np.argsort(operands[0], axis, kind="stable")
        return tuple([np.take_along_axis(x, order, axis) for x in operands])

    return sort
