"""Numbers that are operands of direct calls, so that others do not recompile, where the kernels take them as static."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..interpreter import interpreted
from ..kernel_base import prng
from ..kernels.arithmetic import SPECIAL_EXPONENTS, power_of_floats
from ..kernels.randomness import are_short, bounds_of, integers

# Bounds of random integers


def _draw(seed: Any, low: Any, count: Any, shape: tuple[int, ...], dtype: np.dtype, is_short: bool) -> list[jax.Array]:
    key = jax.random.key(seed, impl=prng.IMPL)
    return [integers(key, shape, low, count, dtype, is_short=is_short)]


_drawn = interpreted(_draw, static_argnums=(3, 4, 5))


def _between(seed: Any, low: Any, high: Any, shape: Sequence[Any], dtype: np.dtype) -> Any:
    """Integers between bounds that a dtype has; None otherwise, and in a program that JAX traces."""
    if isinstance(seed, jax.core.Tracer) or dtype.kind == "c" or not all(type(n) is int for n in (low, high, *shape)):
        return None
    smallest, largest = bounds_of(dtype)
    if not smallest <= low < high <= largest + 1 or high - low >= 2**63 or any(n < 0 for n in shape):
        return None
    return _drawn(seed, np.int64(low), np.uint64(high - low), tuple(shape), dtype, bool(are_short(low, high)))[0]


def _randint(high: Any, size: Any, dtype: Any, seed: Any) -> Any:
    return _between(seed, 0, high, size, dtype)


def _randint_low(low: Any, high: Any, size: Any, dtype: Any, seed: Any) -> Any:
    return _between(seed, low, high, size, dtype)


def _randint_like(x: jax.Array, high: Any, dtype: Any, seed: Any) -> Any:
    return _between(seed, 0, high, x.shape, dtype or x.dtype)


def _randint_like_low(x: jax.Array, low: Any, high: Any, dtype: Any, seed: Any) -> Any:
    return _between(seed, low, high, x.shape, dtype or x.dtype)


def _random_to(x: jax.Array, to: Any, seed: Any) -> Any:
    return _between(seed, 0, to, x.shape, x.dtype)


def _random_from(x: jax.Array, from_: Any, to: Any, seed: Any) -> Any:
    return _between(seed, from_, to, x.shape, x.dtype)


# Exponents

_powered = interpreted(power_of_floats)


def _pow(x: jax.Array, exponent: Any) -> Any:
    if type(exponent) is not float or exponent in SPECIAL_EXPONENTS or x.dtype.kind != "f":
        return None
    return _powered(x, exponent)


RUNS: dict[str, Callable[..., Any]] = {
    "randint": _randint,
    "randint.generator": _randint,
    "randint.low": _randint_low,
    "randint.low_generator": _randint_low,
    "randint_like": _randint_like,
    "randint_like.generator": _randint_like,
    "randint_like.low_dtype": _randint_like_low,
    "randint_like.low_generator_dtype": _randint_like_low,
    "random.to": _random_to,
    "random.from": _random_from,
    "pow.Tensor_Scalar": _pow,
}
"""Functions that run an overload on its kernel's arguments; they return None for calls left to the kernel."""
