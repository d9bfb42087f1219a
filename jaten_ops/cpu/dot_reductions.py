"""Products and sums of products, as XLA's CPU compiler takes them, and fastest.

On a CPU it makes one kernel of a sum and of all that goes into it, which runs operator by operator; a product with a
vector is a kernel of its own, and what goes into that a compiled loop.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..kernel_base.platform import by_platform, is_over_mesh
from ..kernel_base.promotion import compute_type
from ..xla.memory_order import in_order

_Dims = tuple[int, ...]


def contract(a: jax.Array, b: jax.Array, dimension_numbers: Any) -> jax.Array:
    """`lax.dot_general` of arrays of one dtype, with the result still in the dtype that ATen computes in."""
    multiply = functools.partial(lax.dot_general, preferred_element_type=compute_type(a.dtype))
    if a.dtype != jnp.bfloat16:
        return multiply(a, b, dimension_numbers)
    (of_a, of_b), (batch_a, batch_b) = dimension_numbers
    free = [d for d in range(a.ndim) if d not in (*of_a, *batch_a)]
    at = range(a.ndim)
    numbers = (at[len(batch_a) + len(free) :], of_b), (at[: len(batch_a)], batch_b)
    stored = functools.partial(in_order, is_partitioned=is_over_mesh(a) or is_over_mesh(b))
    a = stored(lax.transpose(a, (*batch_a, *free, *of_a)))
    return stored(multiply(a, stored(b) if batch_b else b, numbers))


# XLA's CPU leaves a product in bfloat16 to YNNPACK if that takes it as it stands, and later folds into it what
# transposes its first factor, or, its factors exchanged, the product. YNNPACK takes no transposed first factor, and
# nothing else there computes bfloat16 (jaxlib 0.10.2: "Unsupported element type for DotThunk::Execute"). And of factors
# that lie in another order XLA computes the product in float32, which takes twice the time where the processor
# multiplies bfloat16.


_LINE = 16  # elements: narrow matrices are multiplied fastest by as many columns of another
_LEAST_ROWS = 128  # of a transposed matrix of no such size, for which exchanging the factors pays
_GAIN, _MUCH_GAIN = 1.5, 8.0  # elements not read across rows, for each that is transposed; likewise of no such size
_LEAST = 2**13  # of those that are not read


def is_better_exchanged(rows: Any, columns: Any, terms: Any) -> bool:
    """True if `a.T @ b` takes less time as `(b.T @ a).T`.

    The libraries read a transposed first factor across its rows, and with some sizes these collide in the caches: of
    1024 terms, (1024, 1024) by (1024, 16) takes an eighth of the time with the factors exchanged. The result must be
    kept from being folded into the product again, by `lax.optimization_barrier`.

    Args:
        rows, columns: the columns of a and of b, numbers or open sizes.
        terms: their rows.
    """
    if not all(isinstance(n, int) for n in (rows, columns, terms)):
        return False
    fits = rows % _LINE == 0
    if columns < 2 or not (fits or rows >= _LEAST_ROWS):
        return False
    saved = (rows - columns) * terms
    return saved >= _LEAST and saved >= (_GAIN if fits else _MUCH_GAIN) * rows * columns


_COPIED = 64  # columns: matrices with a multiple of these are transposed fast
_COLLIDING = 512  # columns: the rows of a matrix with a multiple of these meet in few lines of the cache
_MOST_COLUMNS = 1024  # of the other matrix: with more, the time to read the first counts for little


def is_better_turned(rows: Any, columns: Any, terms: Any) -> bool:
    """True if `a.T @ b` takes less time of a transposed copy of a; the sizes are those of `is_better_exchanged`.

    Reading a across its rows is slow where these are a power of two apart, and takes its share of the time for narrow
    b. Measured on an AMD EPYC with AVX-512: with 512 terms (1024, 256) in 0.7 of the time, (256, 256) in 0.9.
    """
    if not all(isinstance(n, int) for n in (rows, columns, terms)) or rows % _COPIED or columns < 2:
        return False
    if rows % _COLLIDING == 0:
        return bool(columns <= _MOST_COLUMNS)
    return bool(columns <= (rows if rows & (rows - 1) == 0 else rows // 2))


_SMALL, _MANY = 2**15, 8  # multiplications of each product of a batch, and the number of products


def is_better_turned_in_batch(rows: Any, columns: Any, terms: Any, products: Any) -> bool:
    """True if a batch of `a.T @ b` takes less time of a transposed copy of all a; sizes as in `is_better_turned`.

    For each product with a transposed first factor the libraries take most of a microsecond before they compute.
    Measured on an AMD EPYC with AVX-512, 512 products of (16, 16) by (16, 32): 0.35 to 0.5 of the time.

    Args:
        rows, columns, terms: of each product.
        products: how many the batch has; an open size counts as many.
    """
    if not all(isinstance(n, int) for n in (rows, columns, terms)) or min(rows, columns) < 2:
        return False
    return rows * columns * terms <= _SMALL and not (isinstance(products, int) and products < _MANY)


def product_over_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a.T @ b` of matrices with as many rows, as `contract` gives it."""
    numbers = (((0,), (0,)), ((), ()))
    exchanges = a.dtype == jnp.float32 and not (is_over_mesh(a) or is_over_mesh(b))
    if exchanges and is_better_exchanged(a.shape[1], b.shape[1], a.shape[0]):
        return lax.transpose(lax.optimization_barrier(contract(b, a, numbers)), (1, 0))
    return contract(a, b, numbers)


def sum_of_products(x: jax.Array, factor: jax.Array, dims: _Dims) -> jax.Array:
    """`sum(x * factor, dims, keepdims=True)`, for a factor that has size 1 in all other dimensions.

    Args:
        x: floating point.
        factor: of the dtype of x and as many dimensions.
        dims: those that are summed over.
    """
    return by_platform(
        x,
        factor,
        cpu=lambda x, factor: _as_product(x, factor, dims),
        default=lambda x, factor: jnp.sum(x * factor, dims, keepdims=True),
    )


def _as_product(x: jax.Array, factor: jax.Array, dims: _Dims) -> jax.Array:
    others = tuple(d for d in range(x.ndim) if d not in dims)
    operands = [(x, dims), (lax.squeeze(factor, others), tuple(range(len(dims))))]
    (a, of_a), (b, of_b) = operands[:: -1 if 0 in dims else 1]  # so that x is not transposed
    out = lax.dot_general(a, b, ((of_a, of_b), ((), ())), precision=lax.Precision.HIGHEST)
    return lax.expand_dims(out, dims)


def sum_of_last(x: jax.Array, dims: _Dims) -> jax.Array:
    """`sum(x, dims, keepdims=True)` of what has been computed for it; a plain sum if other dimensions come behind."""

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(x, dims, keepdims=True)

    if not dims or dims != tuple(range(x.ndim - len(dims), x.ndim)):
        return total(x)
    shape = (1,) * (x.ndim - len(dims)) + x.shape[x.ndim - len(dims) :]
    return by_platform(x, cpu=lambda x: _as_product(x, jnp.ones(shape, x.dtype), dims), default=total)


def all_finite(x: jax.Array) -> jax.Array:
    """True if there is neither an infinity nor a NaN in a floating-point array, which is not empty."""
    row = math.prod(x.shape[-2:])
    zeros = lax.optimization_barrier(jnp.zeros((row,), x.dtype))  # no constant, by which XLA could drop x
    return jnp.isfinite(jnp.sum(lax.dot(lax.reshape(x, (x.size // row, row)), zeros)))
