"""ATen's type promotion, for kernels.

JAX's rules differ (0-d tensors count in full, int64 with float32 may widen), so kernels do not rely on them: they call
`result_type` and cast. Source: c10/core/ScalarType.h and aten/src/ATen/native/TypeProperties.cpp.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax.lax import _convert_element_type  # private; nothing public makes a weakly typed array of another one
from jax.export import is_symbolic_dim

_DEFAULT_FLOAT: ContextVar[np.dtype] = ContextVar(
    "jaten_default_float",
    default=np.dtype("float32"),  # noqa: B039  # dtypes are immutable
)
_COMPLEX_OF = {"float64": "complex128", "float32": "complex64", "float16": "complex64", "bfloat16": "complex64"}
_REAL_OF = {"complex128": "float64", "complex64": "float32"}


@contextlib.contextmanager
def default_float(dtype: np.dtype) -> Iterator[None]:
    """Sets the dtype to which integers and Python floats promote, torch's default dtype, while a kernel is traced."""
    token = _DEFAULT_FLOAT.set(dtype)
    try:
        yield
    finally:
        _DEFAULT_FLOAT.reset(token)


def get_default_float() -> np.dtype:
    """torch's default dtype."""
    return _DEFAULT_FLOAT.get()


def is_float(dtype: Any) -> bool:
    """True if a dtype is a real floating one, bfloat16 and float8 included."""
    return jnp.issubdtype(dtype, jnp.floating)


def is_complex(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)


def is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def is_integral(dtype: Any) -> bool:
    """True if a dtype is bool or an integer: ATen's "integral, including bool"."""
    return not is_inexact(dtype)


def to_complex(dtype: Any) -> np.dtype:
    """complex64 for float32, float16 and bfloat16; complex128 for float64; a complex dtype itself."""
    return np.dtype(_COMPLEX_OF.get(np.dtype(dtype).name, dtype))


def to_real(dtype: Any) -> np.dtype:
    """float32 for complex64, float64 for complex128; a real dtype itself."""
    return np.dtype(_REAL_OF.get(np.dtype(dtype).name, dtype))


def is_scalar(x: Any) -> bool:
    """True if `x` is a Python number, or an array or tracer of one, rather than a tensor."""
    return isinstance(x, bool | int | float | complex) or (isinstance(x, jax.Array) and x.weak_type)


def weakly_typed(x: jax.Array, dtype: Any) -> jax.Array:
    return _convert_element_type(x, dtype, weak_type=True)


def size_number(size: Any, dtype: Any) -> Any:
    """A size, or a product of sizes, as a 0-d array: one that an exported program leaves open is no Python number."""
    return jnp.asarray(size).astype(dtype) if is_symbolic_dim(size) else np.array(size, dtype)


def number_of(array: jax.Array) -> jax.Array:
    """The element of an array in the form in which kernels get numbers: a weakly typed 0-d array."""
    return weakly_typed(lax.reshape(array, ()), array.dtype)


def _scalar_dtype(x: Any) -> np.dtype:
    if isinstance(x, bool):
        return np.dtype(bool)
    if isinstance(x, int):
        return np.dtype("int64")
    if isinstance(x, float):
        return get_default_float()
    if isinstance(x, complex):
        return to_complex(get_default_float())
    if is_complex(x.dtype):
        return to_complex(get_default_float())
    return get_default_float() if is_float(x.dtype) else np.dtype(x.dtype)


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype that holds both: `torch.promote_types`."""
    return np.dtype(jnp.promote_types(a, b))


def _combine(higher: np.dtype | None, lower: np.dtype | None) -> np.dtype | None:
    """The lower category decides the kind (bool < int < float < complex) but not the width."""
    if higher is None or lower is None:
        return higher or lower
    if is_complex(higher):
        return higher
    if is_float(higher):
        return to_complex(higher) if is_complex(lower) else higher
    if higher == bool or is_inexact(lower):
        return promote_types(higher, lower)
    return higher


def result_type(*operands: Any) -> np.dtype:
    """`torch.result_type` of tensors, 0-d tensors and Python numbers; None is ignored."""
    categories: list[np.dtype | None] = [None, None, None]
    dtype: np.dtype | None
    for x in operands:
        if x is None:
            continue
        if is_scalar(x):
            which, dtype = 2, _scalar_dtype(x)
        else:
            which, dtype = (0 if x.ndim else 1), np.dtype(x.dtype)
        known = categories[which]
        categories[which] = dtype if known is None else promote_types(known, dtype)
    dtype = _combine(categories[0], _combine(categories[1], categories[2]))
    assert dtype is not None, "result_type needs at least one operand"
    return dtype


def float_type(*operands: Any) -> np.dtype:
    """`result_type`, with integers and bool becoming torch's default dtype, as in sin or true division."""
    dtype = result_type(*operands)
    return dtype if is_inexact(dtype) else get_default_float()


def cast(x: Any, dtype: Any) -> jax.Array:
    """`x` as an array of exactly this dtype, without JAX's weak type.

    A complex number loses its imaginary part, a float is truncated to an integer, and a number becomes a bool by
    comparison with 0, as ATen's `to` does.
    """
    x = jnp.asarray(x)
    if dtype == bool:
        return lax.convert_element_type(x if x.dtype == bool else x != 0, bool)
    if is_complex(x.dtype) and not is_complex(dtype):
        x = x.real
    if x.dtype == bool and (is_float(dtype) or is_complex(dtype)):
        # XLA turns a product with a converted bool into a choice between the factor and 0, even if the factor is NaN
        x = lax.select(x, lax.full_like(x, 1, np.float32), lax.full_like(x, 0, np.float32))
    return lax.convert_element_type(x, dtype)


def promote(*operands: Any) -> tuple[jax.Array, ...]:
    """The operands as arrays of their common dtype, not broadcast."""
    dtype = result_type(*operands)
    return tuple(cast(x, dtype) for x in operands)


def promote_float(*operands: Any) -> tuple[jax.Array, ...]:
    """The operands as arrays of their common dtype, integers as torch's default dtype."""
    dtype = float_type(*operands)
    return tuple(cast(x, dtype) for x in operands)


def compute_type(dtype: Any) -> np.dtype:
    """The dtype ATen computes in for a storage dtype (its `opmath_t`): float32 for float16, bfloat16 and float8."""
    dtype = np.dtype(dtype)
    return np.dtype("float32") if is_float(dtype) and dtype.itemsize < 4 else dtype


def opmath(dtype: Any, *operands: Any) -> tuple[jax.Array, ...]:
    """The operands, rounded to `dtype`, as arrays of `compute_type(dtype)`, not broadcast: to round only once more."""
    wide = compute_type(dtype)
    return tuple(cast(cast(x, dtype), wide) for x in operands)


def opmath_by(dtype: Any, x: Any, by: Any) -> tuple[jax.Array, jax.Array]:
    """`opmath` of two operands of which the second keeps its precision if it is a number or a 0-d tensor.

    ATen's CPU does so in products and quotients: aten/src/ATen/native/cpu/BinaryOpsKernel.cpp.
    """
    (left,) = opmath(dtype, x)
    return left, cast(by if is_single(by) else cast(by, dtype), left.dtype)


def rounding_to(dtype: Any) -> Callable[[jax.Array], jax.Array]:
    """A function that rounds arrays of `compute_type(dtype)` to `dtype`'s precision, unless they have just that."""
    if compute_type(dtype) == np.dtype(dtype):
        return lambda x: x
    if dtype == np.float16:  # whose subnormal numbers the other function makes zeros
        return lambda x: cast(cast(x, dtype), x.dtype)
    info = jnp.finfo(dtype)
    return lambda x: lax.reduce_precision(x, info.nexp, info.nmant)


def is_single(x: Any) -> bool:
    """True for a number, and for a 0-d tensor."""
    return is_scalar(x) or not jnp.ndim(x)


@jax.custom_jvp
def _widened(x: jax.Array) -> jax.Array:
    """bfloat16 as float32, whose upper half it is."""
    bits = lax.convert_element_type(lax.bitcast_convert_type(x, np.uint16), np.uint32)
    return lax.bitcast_convert_type(lax.shift_left(bits, np.uint32(16)), np.float32)


_widened.defjvp(lambda primals, tangents: (_widened(*primals), lax.convert_element_type(tangents[0], np.float32)))


def widened(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`cast` to a wider dtype on a CPU, where XLA does not vectorize conversions of short rows of bfloat16."""
    return _widened(x) if x.dtype == jnp.bfloat16 and dtype == np.float32 else cast(x, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def moved_as_bits(move: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """`move(x)` of bfloat16, by a function that only moves elements and puts zeros between.

    XLA's CPU would move them in float32.
    """
    return lax.bitcast_convert_type(move(lax.bitcast_convert_type(x, np.uint16)), x.dtype)


moved_as_bits.defjvp(lambda move, primals, tangents: (moved_as_bits(move, *primals), move(*tangents)))
