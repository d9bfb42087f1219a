"""The table of the interpreter's rules: what a primitive of JAX computes, as a function of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr

NumpyStep = Callable[..., Any]
"""Computes an equation's results from its operands' values: an array, or a tuple of them if there may be several."""

StepMaker = Callable[[Any], NumpyStep]
"""Makes the step of an equation of a jaxpr, from its parameters and types."""

STEP_MAKERS: dict[str, StepMaker] = {}
"""By the primitive's name."""


EXPANSIONS: dict[str, Callable[[Any], ClosedJaxpr]] = {}
"""Makes the program of others that a primitive stands for, from an equation; by the primitive's name."""


class NotInterpreted(Exception):
    """NumPy would not compute the same, to the last bit, or it is not known that it does."""


def computed_by(*names: str) -> Callable[[StepMaker], StepMaker]:
    """A decorator that registers a function as the rule of primitives."""

    def register(function: StepMaker) -> StepMaker:
        STEP_MAKERS.update(dict.fromkeys(names, function))
        return function

    return register


def interpreted_if(holds: Any) -> None:
    """Raises NotInterpreted unless a condition holds."""
    if not holds:
        raise NotInterpreted


def dtype_of(equation: Any, operand: int = 0) -> np.dtype:
    """The dtype of one of an equation's operands."""
    return np.dtype(equation.invars[operand].aval.dtype)


def is_float_dtype(dtype: np.dtype) -> bool:
    """True for every type of floating-point numbers, also those that NumPy does not have itself."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def is_short(dtype: np.dtype) -> bool:
    """True for floating-point numbers of 16 bits or fewer."""
    return is_float_dtype(dtype) and dtype.itemsize <= 2
