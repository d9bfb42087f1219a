"""Products, adjoints, triangles, permutations and errors for the kernels of linear algebra."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..kernel_base import checks

# On GPUs the default precision of XLA's products is less than that of a factorization
matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def matrix_transpose(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


def adjoint(x: jax.Array) -> jax.Array:
    """The conjugate transpose."""
    return jnp.conj(matrix_transpose(x))


def matrix_diagonal(x: jax.Array) -> jax.Array:
    return jnp.diagonal(x, axis1=-2, axis2=-1)


def with_batch(*matrices: jax.Array) -> list[jax.Array]:
    """Matrices with their batch dimensions broadcast to each other."""
    batch = jnp.broadcast_shapes(*(m.shape[:-2] for m in matrices))
    return [jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in matrices]


def solve_triangular(
    a: jax.Array, b: jax.Array, *, lower: bool, left: bool = True, adjoint_a: bool = False, unit: bool = False
) -> jax.Array:
    """Solves a x = b (x a = b unless `left`) for a triangular a, or its adjoint; a zero on the diagonal gives inf."""
    a, b = with_batch(a, b)
    if b.size == 0:
        return b
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=lower, transpose_a=adjoint_a, conjugate_a=adjoint_a, unit_diagonal=unit
    )


def permutation_of(pivots: jax.Array, size: int) -> jax.Array:
    """The order of the rows, (..., size), that ATen's pivots, counted from 1, stand for: A[order] = L U."""
    if pivots.size == 0:
        return jnp.broadcast_to(lax.iota(np.int32, size), (*pivots.shape[:-1], size))
    return lax.linalg.lu_pivots_to_permutation(jnp.clip(pivots - 1, 0, size - 1), size)


def permute_rows(x: jax.Array, order: jax.Array) -> jax.Array:
    """x[..., order, :] for each matrix of a batch."""
    batch = jnp.broadcast_shapes(x.shape[:-2], order.shape[:-1])
    x = jnp.broadcast_to(x, (*batch, *x.shape[-2:]))
    order = jnp.broadcast_to(order, (*batch, order.shape[-1]))[..., None]
    return jnp.take_along_axis(x, order, -2, mode="promise_in_bounds")


def first_index(hit: jax.Array) -> jax.Array:
    """1 + the first index along the last axis where `hit` holds, 0 if nowhere: LAPACK's info, int32."""
    n = hit.shape[-1]
    if n == 0:
        return jnp.zeros(hit.shape[:-1], np.int32)
    at = lax.broadcasted_iota(np.int32, hit.shape, hit.ndim - 1)
    first = jnp.where(hit, at, np.int32(n)).min(-1)
    return jnp.where(first == n, 0, first + 1).astype(np.int32)


def require_regular(ok: jax.Array, name: str, problem: str) -> None:
    """Raises torch.linalg.LinAlgError unless all factorizations of a batch succeeded."""
    checks.require(ok, np.linalg.LinAlgError, f"{name}: {problem}")


def require_square(x: jax.Array, name: str) -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuntimeError(f"{name}: A must be batches of square matrices, but they are of shape {x.shape}")
