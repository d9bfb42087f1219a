"""Rules of elementwise primitives: arithmetic that rounds at most once, comparisons, bits, conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .primitive_rules import NotInterpreted, NumpyStep, computed_by, dtype_of, interpreted_if, is_float_dtype, is_short

_ROUNDING = frozenset({"add", "sub", "mul", "div", "add_any", "sqrt", "square", "integer_pow", "scatter-add"})


SUMS_OF_TWO = frozenset({"add", "sub", "add_any"})
"""A compiler leaves a row of them as it is, but for those of constants, which it would add up first."""


def rounds(equation: Any) -> bool:
    """True if results are rounded. A compiler may do so once for two operations, such as a product and its sum."""
    name, dtype = equation.primitive.name, dtype_of(equation) if equation.invars else None
    if dtype is None or not is_float_dtype(dtype):
        return False
    return name in _ROUNDING or (name == "convert_element_type" and is_short(np.dtype(equation.params["new_dtype"])))


_SAME: dict[str, NumpyStep] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "neg": np.negative,
    "is_finite": np.isfinite,
    "not": np.invert,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": np.equal,
    "ne": np.not_equal,
    "max": np.maximum,
    "min": np.minimum,
    "real": np.real,
    "imag": np.imag,
}
_REAL: dict[str, NumpyStep] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "add_any": np.add,
    "sqrt": np.sqrt,
    "square": np.square,
}


@computed_by(*_SAME)
def _same(equation: Any) -> NumpyStep:
    name = equation.primitive.name
    dtype = dtype_of(equation)
    interpreted_if(dtype.kind != "c" or name in ("neg", "real", "imag"))
    interpreted_if(dtype.kind != "V" or name not in ("max", "min"))  # ml_dtypes keeps denormal numbers
    return _SAME[name]


@computed_by(*_REAL)
def _real(equation: Any) -> NumpyStep:
    dtype = dtype_of(equation)
    interpreted_if(dtype.kind in "iu" or is_float_dtype(dtype))
    return _REAL[equation.primitive.name]


@computed_by("div")
def _divided(equation: Any) -> NumpyStep:
    interpreted_if(is_float_dtype(dtype_of(equation)))
    return np.divide


@computed_by("rem")
def _remainder(equation: Any) -> NumpyStep:
    interpreted_if(dtype_of(equation).name in ("float32", "float64"))
    return np.fmod


@computed_by("integer_pow")
def _squared(equation: Any) -> NumpyStep:
    interpreted_if(equation.params["y"] == 2 and is_float_dtype(dtype_of(equation)))
    return np.square


@computed_by("sign")
def _sign(equation: Any) -> NumpyStep:
    interpreted_if(dtype_of(equation).kind in "iu")
    return np.sign


@computed_by("round")
def _rounded(equation: Any) -> NumpyStep:
    interpreted_if(int(equation.params["rounding_method"]) == 1)  # to the nearest, halves to even
    return np.rint


@computed_by("clamp")
def _clamped(equation: Any) -> NumpyStep:
    return lambda low, x, high: np.minimum(np.maximum(x, low), high)


@computed_by("select_n")
def _selected(equation: Any) -> NumpyStep:
    which = equation.invars[0].aval
    if which.dtype == np.bool_:
        return lambda where, no, yes: np.where(where, yes, no)
    interpreted_if(which.ndim == 0)
    return lambda index, *cases: cases[min(max(int(index), 0), len(cases) - 1)]


@computed_by("copy", "copy_p", "stop_gradient", "optimization_barrier", "in_order")
def _given(equation: Any) -> NumpyStep:
    return lambda *values: values if len(values) > 1 else values[0]


@computed_by("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shifted(equation: Any) -> NumpyStep:
    dtype, name = dtype_of(equation), equation.primitive.name
    bits, unsigned = dtype.itemsize * 8, np.dtype(f"u{dtype.itemsize}")

    def shift(x: Any, by: Any) -> Any:
        by, within = np.minimum(by.astype(unsigned), bits - 1).astype(dtype), by.astype(unsigned) < bits
        if name == "shift_right_arithmetic":  # beyond all bits, only the sign is left
            return np.right_shift(x, by)
        if name == "shift_right_logical":
            return np.where(within, np.right_shift(x.view(unsigned), by.view(unsigned)).view(dtype), dtype.type(0))
        return np.where(within, np.left_shift(x, by), dtype.type(0))

    interpreted_if(name != "shift_right_arithmetic" or dtype.kind == "i")
    return lambda x, by: shift(np.asarray(x), np.asarray(by))


@computed_by("bitcast_convert_type")
def _bits(equation: Any) -> NumpyStep:
    dtype = np.dtype(equation.params["new_dtype"])
    interpreted_if(dtype.itemsize == dtype_of(equation).itemsize)
    return lambda x: np.asarray(x).view(dtype)


@computed_by("convert_element_type")
def _converted(equation: Any) -> NumpyStep:
    interpreted_if(equation.params.get("sharding") is None)
    old, new = dtype_of(equation), np.dtype(equation.params["new_dtype"])
    if new == np.bool_:
        interpreted_if(old.kind != "c" and not is_short(old))  # which of their numbers are denormal differs
        return lambda x: np.not_equal(x, 0)
    if is_float_dtype(old) and new.kind in "iu":
        return _to_whole(new)
    if is_short(old) and is_short(new) and old != new:
        raise NotInterpreted
    interpreted_if(old.kind != "c" or new.kind == "c")
    interpreted_if(not (is_short(new) and new.itemsize == 1))
    return lambda x: np.asarray(x).astype(new)


def _to_whole(dtype: np.dtype) -> NumpyStep:
    """Numbers beyond the range become its ends, and NaN becomes 0."""
    ends = np.iinfo(dtype)

    def convert(x: Any) -> Any:
        x = np.asarray(x)
        wide = x.astype(np.float64)
        below = np.less if dtype.itemsize == 8 else np.less_equal  # no float is the largest number of 64 bits
        inside = (wide >= ends.min) & below(wide, float(ends.max))
        if inside.all():
            return x.astype(dtype)
        kept = np.where(inside, wide, 0).astype(dtype)
        kept = np.where(wide < ends.min, dtype.type(ends.min), kept)
        return np.where(~inside & (wide > 0), dtype.type(ends.max), kept)

    return convert
