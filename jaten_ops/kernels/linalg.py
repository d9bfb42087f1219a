"""Linear systems, determinants, inverses and functions of matrices."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, is_complex, promote, to_real
from .decomposition import lu_factor, lu_solve, require_svd, solve_stored, stored_lu, svd_of
from .matrices import (
    adjoint,
    matmul,
    matrix_diagonal,
    matrix_transpose,
    require_regular,
    require_square,
    solve_triangular,
    with_batch,
)

_SINGULAR = "The solver failed because the input matrix is singular."

# Systems


@jax.custom_jvp
def solve(a: jax.Array, b: jax.Array) -> jax.Array:
    """x with a x = b, for matrices a (..., n, n) and b (..., n, k)."""
    factors, pivots, _ = lu_factor(a)
    return lu_solve(factors, pivots, b)


@solve.defjvp
def _solve_jvp(primals, tangents):
    a, _ = primals
    x = solve(*primals)
    return x, solve(a, tangents[1] - matmul(tangents[0], x))


def _is_vector(a: jax.Array, b: jax.Array) -> bool:
    """True if b is a batch of vectors rather than matrices, by ATen's rule."""
    return b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])


# aten::_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor LU,
#     Tensor pivots, Tensor info)
@kernel("_linalg_solve_ex")
def linalg_solve_ex(A, B, left=True, check_errors=False):
    require_square(A, "linalg.solve")
    vector = _is_vector(A, B)
    b = B[..., None] if vector else B
    factors, pivots, info = lu_factor(lax.stop_gradient(A))
    if check_errors:
        require_regular(info == 0, "torch.linalg.solve_ex", _SINGULAR)
    x = solve(A, b) if left else matrix_transpose(solve(matrix_transpose(A), matrix_transpose(b)))
    return (x[..., 0] if vector else x), factors, pivots, info


# aten::linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)
@kernel("linalg_inv_ex")
def linalg_inv_ex(A, check_errors=False):
    require_square(A, "linalg.inv")
    info = lu_factor(lax.stop_gradient(A))[2]
    if check_errors:
        require_regular(info == 0, "linalg.inv_ex", "The inversion could not be completed: the matrix is singular.")
    return inverse(A), info


@jax.custom_jvp
def inverse(a: jax.Array) -> jax.Array:
    return solve(a, jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape))


@inverse.defjvp
def _inverse_jvp(primals, tangents):
    out = inverse(*primals)
    return out, -matmul(out, matmul(tangents[0], out))


# aten::linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True,
#     bool unitriangular=False) -> Tensor
@kernel("linalg_solve_triangular")
def linalg_solve_triangular(self, B, upper, left=True, unitriangular=False):
    return solve_triangular(self, cast(B, self.dtype), lower=not upper, left=left, unit=unitriangular)


# aten::triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False,
#     bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)
@kernel("triangular_solve")
def triangular_solve(self, A, upper=True, transpose=False, unitriangular=False):
    b, a = with_batch(self, A)
    # the transpose, not the adjoint, also of complex matrices
    coefficients = jnp.swapaxes(a, -1, -2) if transpose else a
    return solve_triangular(coefficients, b, lower=upper == transpose, unit=unitriangular), a


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool) -> jax.Array:
    first = solve_triangular(factor, b, lower=not upper, adjoint_a=upper)
    return solve_triangular(factor, first, lower=not upper, adjoint_a=not upper)


@_cholesky_solve.defjvp
def _cholesky_solve_jvp(upper, primals, tangents):
    # as in ATen, the gradient does not vanish in the triangle that is not read
    (_, factor), (b_change, change) = primals, tangents
    x = _cholesky_solve(*primals, upper)
    moved = matmul(adjoint(change), factor) if upper else matmul(change, adjoint(factor))
    return x, _cholesky_solve(b_change - matmul(moved + adjoint(moved), x), factor, upper)


# aten::cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor
# aten::_cholesky_solve_helper(Tensor self, Tensor A, bool upper) -> Tensor
@kernel("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(self, input2, upper=False):
    return _cholesky_solve(*with_batch(self, input2), upper)


# aten::cholesky_inverse(Tensor self, bool upper=False) -> Tensor
@kernel("cholesky_inverse")
def cholesky_inverse(self, upper=False):
    require_square(self, "cholesky_inverse")
    require_regular(
        matrix_diagonal(self) != 0, "cholesky_inverse", "The inversion could not be completed: a zero diagonal."
    )
    return _cholesky_solve(jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape), self, upper)


# aten::_linalg_check_errors(Tensor info, str api_name, *, bool is_matrix) -> ()
@kernel("_linalg_check_errors")
def linalg_check_errors(info, api_name, is_matrix):
    require_regular(info == 0, api_name, "The factorization could not be completed.")
    return ()


# Determinants


def _parity(pivots: jax.Array, dtype: np.dtype) -> jax.Array:
    """The sign of the permutation of an LU."""
    swaps = jnp.sum(cast(pivots != lax.iota(np.int32, pivots.shape[-1]) + 1, "int32"), -1)
    return cast(1 - 2 * (swaps % 2), dtype)


def _regularized(factors: jax.Array) -> jax.Array:
    """An LU whose zero pivots are replaced by a tiny number, as ATen's gradients do."""
    pivots = matrix_diagonal(factors)
    eps = np.array(jnp.finfo(factors.dtype).eps, factors.dtype)
    return factors + jnp.where(pivots == 0, eps, 0)[..., None] * jnp.eye(pivots.shape[-1], dtype=factors.dtype)


@jax.custom_jvp
def _det(a: jax.Array) -> jax.Array:
    factors, pivots, _ = stored_lu(a)
    return jnp.prod(matrix_diagonal(factors), -1) * _parity(pivots, a.dtype)


@_det.defjvp
def _det_jvp(primals, tangents):
    out = _det(*primals)
    factors, pivots, _ = stored_lu(*primals)
    change = solve_stored(_regularized(factors), pivots, tangents[0])
    return out, out * jnp.sum(matrix_diagonal(change), -1)


# aten::_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)
@kernel("_linalg_det")
def linalg_det(A):
    require_square(A, "linalg.det")
    factors, pivots, _ = stored_lu(lax.stop_gradient(A))
    return _det(A), factors, pivots


@jax.custom_jvp
def _slogdet(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    factors, pivots, _ = stored_lu(a)
    values = matrix_diagonal(factors)
    return jnp.prod(lax.sign(values), -1) * _parity(pivots, a.dtype), jnp.sum(lax.log(lax.abs(values)), -1)


@_slogdet.defjvp
def _slogdet_jvp(primals, tangents):
    (a,), (change,) = primals, tangents
    sign, logabs = _slogdet(a)
    trace = jnp.sum(matrix_diagonal(solve(a, change)), -1)
    turned = 1j * jnp.imag(trace) * sign if is_complex(a.dtype) else jnp.zeros_like(sign)
    return (sign, logabs), (turned, jnp.real(trace))


# aten::_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)
@kernel("_linalg_slogdet")
def linalg_slogdet(A):
    require_square(A, "linalg.slogdet")
    factors, pivots, _ = stored_lu(lax.stop_gradient(A))
    return *_slogdet(A), factors, pivots


# Least squares and pseudo-inverses


def _tolerance(value: Any, dtype: np.dtype) -> jax.Array:
    return jnp.zeros((), dtype) if value is None else cast(value, dtype)


def _default_rtol(a: jax.Array) -> float:
    return float(jnp.finfo(a.dtype).eps) * max(a.shape[-2:])


def _pseudo_inverse(a: jax.Array, cutoff: Any, hermitian: bool) -> jax.Array:
    """The pseudo-inverse; `cutoff` maps the largest singular value to the one below which they count as 0."""
    if hermitian:
        vectors, values = lax.linalg.eigh(a, symmetrize_input=False)
        size = lax.abs(values)
        left, right = vectors, adjoint(vectors)
    else:
        left, values, right = svd_of(a, False)
        size = values
    keep = size > cutoff(jnp.max(size, -1, keepdims=True))
    inverted = jnp.where(keep, 1 / jnp.where(keep, values, jnp.ones((), values.dtype)), jnp.zeros((), values.dtype))
    return matmul(adjoint(right) * cast(inverted, a.dtype)[..., None, :], adjoint(left))


@jax.custom_jvp
def _as_pseudo_inverse(a: jax.Array, inverted: jax.Array) -> jax.Array:
    """`inverted`, known to be the pseudo-inverse of a, differentiable by a (pinv_jvp in FunctionsManual.cpp)."""
    return inverted


@_as_pseudo_inverse.defjvp
def _as_pseudo_inverse_jvp(primals, tangents):
    a, inverted = primals
    p, change = _as_pseudo_inverse(a, inverted), adjoint(tangents[0])
    out = -matmul(p, matmul(tangents[0], p))
    inner = matmul(p, matmul(adjoint(p), change))
    out = out + inner - matmul(matmul(inner, a), p)
    outer = matmul(change, matmul(adjoint(p), p))
    return p, out + outer - matmul(p, matmul(a, outer))


# aten::linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None,
#     bool hermitian=False) -> Tensor
@kernel("linalg_pinv.atol_rtol_tensor")
def linalg_pinv(self, atol=None, rtol=None, hermitian=False):
    batch, real = self.shape[:-2], to_real(self.dtype)
    if self.size == 0:
        return jnp.zeros((*batch, self.shape[-1], self.shape[-2]), self.dtype)
    if not hermitian:
        require_svd(self)
    absolute = _tolerance(atol, real)
    relative = cast(rtol, real) if rtol is not None else jnp.full((), _default_rtol(self), real)
    if rtol is None:  # a positive absolute tolerance replaces the default relative one
        relative = jnp.where(absolute > 0, jnp.zeros((), real), relative)
    absolute, relative = absolute[..., None], relative[..., None]
    fixed = lax.stop_gradient(self)
    inverted = _pseudo_inverse(fixed, lambda top: lax.max(*jnp.broadcast_arrays(absolute, relative * top)), hermitian)
    return _as_pseudo_inverse(self, lax.stop_gradient(inverted))


def _least_squares(a: jax.Array, b: jax.Array, rcond: jax.Array, driver: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The solution of least norm, the rank and the singular values."""
    m, n = a.shape[-2:]
    if driver == "gels":  # a has full rank
        if m >= n:
            q, r = lax.linalg.qr(a, full_matrices=False)
            x = solve_triangular(r, matmul(adjoint(q), b), lower=False)
        else:
            q, r = lax.linalg.qr(adjoint(a), full_matrices=False)
            x = matmul(q, solve_triangular(r, b, lower=False, adjoint_a=True))
        return x, jnp.zeros(0, np.int64), jnp.zeros(0, to_real(a.dtype))
    u, s, vh = svd_of(a, False)
    keep = s > rcond * jnp.max(s, -1, keepdims=True, initial=0)
    inverted = jnp.where(keep, 1 / jnp.where(keep, s, jnp.ones((), s.dtype)), jnp.zeros((), s.dtype))
    x = matmul(adjoint(vh), cast(inverted, a.dtype)[..., None] * matmul(adjoint(u), b))
    rank = jnp.sum(cast(keep, "int64"), -1)
    return x, rank, jnp.zeros(0, s.dtype) if driver == "gelsy" else s


@jax.custom_jvp
def _as_solution(a: jax.Array, b: jax.Array, x: jax.Array, inverted: jax.Array) -> jax.Array:
    """`x`, known to be the least-squares solution of a x = b, differentiable by both."""
    return x


@_as_solution.defjvp
def _as_solution_jvp(primals, tangents):
    a, b, x, inverted = primals
    p, turned = jax.jvp(lambda a: _as_pseudo_inverse(a, inverted), (a,), tangents[:1])
    return _as_solution(a, b, x, inverted), matmul(turned, b) + matmul(p, tangents[1])


def _residuals_depend_on_rank(self, b, rcond=None, driver=None) -> bool:
    return driver in ("gelsd", "gelss") and self.ndim > 1 and self.shape[-2] > self.shape[-1]


# aten::linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> (Tensor solution,
#     Tensor residuals, Tensor rank, Tensor singular_values)
@kernel("linalg_lstsq", eager=_residuals_depend_on_rank)
def linalg_lstsq(self, b, rcond=None, driver=None):
    driver = driver or "gelsy"
    m, n = self.shape[-2:]
    vector = _is_vector(self, b)
    a, rhs = with_batch(self, b[..., None] if vector else b)
    fixed = lax.stop_gradient(a)
    cut = jnp.full((), _default_rtol(a), to_real(a.dtype)) if rcond is None else cast(rcond, to_real(a.dtype))
    x, rank, singular_values = _least_squares(fixed, lax.stop_gradient(rhs), cut, driver)
    cutoff = np.array(_default_rtol(a), to_real(a.dtype))
    inverted = (
        lax.stop_gradient(_pseudo_inverse(fixed, lambda top: cutoff * top, False)) if a.size else matrix_transpose(a)
    )
    x = _as_solution(a, rhs, lax.stop_gradient(x), inverted)
    residuals = jnp.zeros(0, to_real(a.dtype))
    if m > n and driver != "gelsy" and (driver == "gels" or bool(jnp.all(rank == n))):
        difference = matmul(a, x) - rhs
        residuals = jnp.sum(jnp.real(difference * jnp.conj(difference)), -2)
    return (x[..., 0] if vector else x), residuals, rank, singular_values


# Functions of matrices


_PADE = (  # of degree 13
    *(64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0),
    *(10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0),
)
_LARGEST_NORM = 5.371920351148152


# aten::linalg_matrix_exp(Tensor self) -> Tensor
@kernel("linalg_matrix_exp")
def linalg_matrix_exp(self):
    """Padé approximation with scaling and squaring (Higham, The scaling and squaring method ..., 2005).

    Each squaring doubles the relative error: it is done in double precision, whatever the dtype.
    """
    require_square(self, "linalg.matrix_exp")
    a = cast(self, np.complex128 if is_complex(self.dtype) else np.float64)
    real = np.float64
    norm = jnp.max(jnp.sum(lax.abs(a), -2), -1, initial=0)
    squarings = jnp.ceil(jnp.log2(jnp.maximum(norm / _LARGEST_NORM, 1)))
    squarings = cast(jnp.where(jnp.isfinite(squarings), squarings, 0), "int32")[..., None, None]
    a = a / cast(lax.exp2(cast(squarings, real)), a.dtype)
    even = odd = power = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    coefficients = [c / _PADE[0] for c in _PADE]
    square, even, odd = matmul(a, a), even * coefficients[0], odd * coefficients[1]
    for i in range(2, len(_PADE) - 1, 2):
        power = matmul(power, square)
        even, odd = even + power * coefficients[i], odd + power * coefficients[i + 1]
    odd = matmul(a, odd)
    out = solve(even - odd, even + odd)

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(i < squarings, matmul(x, x), x)

    return cast(lax.fori_loop(0, jnp.max(squarings, initial=0), step, out), self.dtype)


# aten::_compute_linear_combination(Tensor input, Tensor coefficients) -> Tensor
@kernel("_compute_linear_combination")
def compute_linear_combination(input, coefficients):
    """sum_j coefficients[i, j] input[j]: (m, n) by (n, ...)."""
    return jnp.tensordot(coefficients, input, 1, precision=lax.Precision.HIGHEST)


# aten::linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor
@kernel("linalg_cross")
def linalg_cross(self, other, dim=-1):
    self, other = jnp.broadcast_arrays(*promote(self, other))
    axis = dim % self.ndim

    def rolled(x: jax.Array, by: int) -> jax.Array:
        return jnp.roll(x, -by, axis)

    return rolled(self, 1) * rolled(other, 2) - rolled(self, 2) * rolled(other, 1)
