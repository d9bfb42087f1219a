"""The LDL factorization with the Bunch-Kaufman pivoting of LAPACK's sytf2 and hetf2, and its solves (sytrs, hetrs)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import is_complex
from .matrices import matmul, require_regular, require_square, with_batch

_ALPHA = (1 + math.sqrt(17)) / 8


def _magnitude(x: jax.Array) -> jax.Array:
    """LAPACK's cabs1."""
    return jnp.abs(jnp.real(x)) + jnp.abs(jnp.imag(x)) if is_complex(x.dtype) else jnp.abs(x)


def _swapped(x: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """x with rows i and j exchanged."""
    return x.at[i].set(x[j]).at[j].set(x[i])


def _choose_pivot(rest: jax.Array, k: jax.Array, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The row to exchange, whether the block is 2 x 2, and whether the column is zero.

    Args:
        rest: the matrix that is left, whole, with zeros in the rows and columns before k.
    """
    at = lax.iota(np.int32, rest.shape[0])
    size = _magnitude(rest)
    diagonal = jnp.abs(jnp.real(jnp.diagonal(rest))) if hermitian else jnp.diagonal(size)
    column = jnp.where(at > k, size[:, k], -1)
    largest = jnp.argmax(column).astype(np.int32)
    column_max = jnp.maximum(column[largest], 0)
    row_max = jnp.max(jnp.where((at >= k) & (at != largest), size[largest], 0))
    here = diagonal[k]
    zero = ~(jnp.maximum(here, column_max) > 0)
    keep = zero | (here >= _ALPHA * column_max) | (here * row_max >= _ALPHA * column_max * column_max)
    single = diagonal[largest] >= _ALPHA * row_max
    return jnp.where(keep, k, largest), ~keep & ~single, zero


def _factor(a: jax.Array, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """LD, pivots and info of one matrix, from its lower triangle."""
    n = a.shape[0]
    at = lax.iota(np.int32, n)
    other: Callable[[jax.Array], jax.Array] = jnp.conj if hermitian else (lambda x: x)
    lower = jnp.tril(a, -1)
    diagonal = jnp.real(jnp.diagonal(a)).astype(a.dtype) if hermitian else jnp.diagonal(a)
    whole = lower + other(lower).T + jnp.diag(diagonal)

    def step(state: Any) -> Any:
        k, rest, out, pivots, info = state
        row, double, zero = _choose_pivot(rest, k, hermitian)
        end = jnp.where(double, k + 1, k)
        rest = _swapped(_swapped(rest, end, row).T, end, row).T
        next_ = jnp.minimum(k + 1, n - 1)
        first, second = rest[:, k], rest[:, next_]
        # the multipliers of the column, or of both columns, below the block
        single = jnp.where(at > k, first / jnp.where(zero, 1, rest[k, k]), 0)
        p, q, r = rest[k, k], rest[next_, k], rest[next_, next_]
        determinant = jnp.where(double, p * r - q * other(q), 1)
        below = at > k + 1
        left = jnp.where(below, (first * r - second * q) / determinant, 0)
        right = jnp.where(below, (second * p - first * other(q)) / determinant, 0)
        left, right = jnp.where(double, left, single), jnp.where(double, right, 0)
        update = jnp.outer(left, other(first)) + jnp.outer(right, other(second))
        after = at > end
        rest = jnp.where((after[:, None] & after[None]) & ~zero, rest - update, rest)
        rest_left = jnp.where(after[:, None] & after[None], rest, 0)
        column = jnp.where(at == k, p, jnp.where(double & (at == k + 1), q, jnp.where(zero, first * (at > k), left)))
        out = out.at[:, k].set(jnp.where(at >= k, column, 0))
        doubled = out.at[:, next_].set(jnp.where(at > k + 1, right, jnp.where(at == k + 1, r, 0)))
        out = jnp.where(double, doubled, out)
        mark = jnp.where(double, -(row + 1), row + 1).astype(np.int32)
        pivots = pivots.at[k].set(mark)
        pivots = jnp.where(double, pivots.at[next_].set(mark), pivots)
        info = jnp.where(zero & (info == 0), k + 1, info).astype(np.int32)
        return (end + 1).astype(np.int32), rest_left, out, pivots, info

    start = (np.int32(0), whole, jnp.zeros_like(a), jnp.zeros(n, np.int32), np.int32(0))
    _, _, out, pivots, info = lax.while_loop(lambda state: state[0] < n, step, start)
    return out, pivots, info


# aten::linalg_ldl_factor_ex(Tensor self, *, bool hermitian=False, bool check_errors=False) -> (Tensor LD,
#     Tensor pivots, Tensor info)
@kernel("linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(self, hermitian=False, check_errors=False):
    require_square(self, "torch.linalg.ldl_factor_ex")
    batch, n = self.shape[:-2], self.shape[-1]
    if self.size == 0:
        return self, jnp.zeros((*batch, n), np.int32), jnp.zeros(batch, np.int32)
    factor = functools.partial(_factor, hermitian=hermitian and is_complex(self.dtype))
    out, pivots, info = jax.vmap(factor)(self.reshape(math.prod(batch), n, n))
    info = info.reshape(batch)
    if check_errors:
        require_regular(info == 0, "torch.linalg.ldl_factor_ex", "D is exactly singular.")
    return out.reshape(self.shape), pivots.reshape(*batch, n), info


def _solve(factors: jax.Array, pivots: jax.Array, b: jax.Array, hermitian: bool) -> jax.Array:
    """x with a x = b for one matrix."""
    n = factors.shape[0]
    at = lax.iota(np.int32, n)
    other: Callable[[jax.Array], jax.Array] = jnp.conj if hermitian else (lambda x: x)

    def column(k: jax.Array, beyond: jax.Array) -> jax.Array:
        return jnp.where(at > beyond, factors[:, k], 0)

    def forward(state: Any) -> Any:
        k, x = state
        double = pivots[k] < 0
        end = jnp.where(double, k + 1, k)
        x = _swapped(x, end, jnp.abs(pivots[k]) - 1)
        change = jnp.outer(column(k, end), x[k]) + jnp.where(double, jnp.outer(column(end, end), x[end]), 0)
        x = x - change
        p, q, r = factors[k, k], factors[end, k], factors[end, end]
        p, r = (jnp.real(p).astype(p.dtype), jnp.real(r).astype(r.dtype)) if hermitian else (p, r)
        determinant = jnp.where(double, p * r - q * other(q), 1)
        upper, lower = (x[k] * r - x[end] * other(q)) / determinant, (x[end] * p - x[k] * q) / determinant
        x = jnp.where(double, x.at[k].set(upper).at[end].set(lower), x.at[k].set(x[k] / p))
        return (end + 1).astype(np.int32), x

    def backward(state: Any) -> Any:
        k, x = state
        double = pivots[k] < 0
        begin = jnp.where(double, k - 1, k)
        first = x[k] - matmul(other(column(k, k)), x)
        second = x[begin] - matmul(other(column(begin, k)), x)
        x = jnp.where(double, x.at[k].set(first).at[begin].set(second), x.at[k].set(first))
        return (begin - 1).astype(np.int32), _swapped(x, k, jnp.abs(pivots[k]) - 1)

    _, x = lax.while_loop(lambda state: state[0] < n, forward, (np.int32(0), b))
    return lax.while_loop(lambda state: state[0] >= 0, backward, (np.int32(n - 1), x))[1]


# aten::linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, *, bool hermitian=False) -> Tensor
@kernel("linalg_ldl_solve")
def linalg_ldl_solve(LD, pivots, B, hermitian=False):
    factors, b = with_batch(LD, B)
    if b.size == 0:
        return b
    batch, n = b.shape[:-2], b.shape[-2]
    pivots = jnp.broadcast_to(pivots, (*batch, n)).reshape(math.prod(batch), n)
    solve = functools.partial(_solve, hermitian=hermitian and is_complex(LD.dtype))
    flat = (x.reshape(math.prod(batch), *x.shape[-2:]) for x in (factors, b))
    factors, b_flat = flat
    return jax.vmap(solve)(factors, pivots, b_flat).reshape(b.shape)
