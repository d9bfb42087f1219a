"""Matrix factorizations: Cholesky, LU, LDL, QR, eigenvalues, singular values.

Derivatives that JAX lacks, or that are not ATen's, are those of torch/csrc/autograd/FunctionsManual.cpp.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base import checks
from ..kernel_base.promotion import cast, is_complex, to_real
from .matrices import (
    adjoint,
    first_index,
    matmul,
    matrix_diagonal,
    matrix_transpose,
    permutation_of,
    permute_rows,
    require_regular,
    require_square,
    solve_triangular,
)

# Cholesky


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def cholesky_lower(a: jax.Array, upper: bool) -> jax.Array:
    """L with L adjoint(L) = a, from one triangle of a; NaN where a is not positive definite."""
    return jnp.tril(lax.linalg.cholesky(adjoint(a) if upper else a, symmetrize_input=False))


@cholesky_lower.defjvp
def _cholesky_jvp(upper, primals, tangents):
    lower = cholesky_lower(*primals, upper)
    inner = solve_triangular(lower, tangents[0], lower=True)
    inner = solve_triangular(lower, inner, lower=True, left=False, adjoint_a=True)
    # the adjoint of cholesky_backward, which does not drop the imaginary part of the diagonal
    half = jnp.eye(inner.shape[-1], dtype=inner.dtype) / 2
    inner = jnp.tril((inner + adjoint(inner)) / 2, -1) + inner * half
    return lower, matmul(lower, inner)


def _stepwise_cholesky(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cholesky factor L of one matrix, as far as it goes, and the order of the first leading minor <= 0, or 0."""
    n = a.shape[-1]
    at = lax.iota(np.int32, n)

    def step(j: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        lower, info = state
        done = jnp.where(at < j, lower, 0)
        column = lower[:, j] - matmul(done, jnp.conj(done[j]))
        pivot = jnp.real(column[j])
        ok, root = pivot > 0, jnp.sqrt(pivot)
        column = jnp.where(ok, jnp.where(at == j, root, column / root), jnp.where(at == j, pivot, lower[:, j]))
        going = (info == 0) & (at >= j)
        lower = lower.at[:, j].set(jnp.where(going, cast(column, a.dtype), lower[:, j]))
        return lower, cast(jnp.where((info == 0) & ~ok, j + 1, info), "int32")

    lower, info = lax.fori_loop(0, n, step, (jnp.tril(a), np.int32(0)))
    return lower, info


def _cholesky_with_info(a: jax.Array, upper: bool) -> tuple[jax.Array, jax.Array]:
    """The factor and LAPACK's info. The stepwise factorization runs only if the fast one has failed."""
    if a.size == 0:
        return a, jnp.zeros(a.shape[:-2], np.int32)
    factor = cholesky_lower(a, upper)
    failed = jnp.any(jnp.isnan(lax.stop_gradient(factor)), (-2, -1))
    batch = a.shape[:-2]

    def diagnose(a: jax.Array) -> tuple[jax.Array, jax.Array]:
        lower, info = jax.vmap(_stepwise_cholesky)(a.reshape(math.prod(batch), *a.shape[-2:]))
        return lower.reshape(a.shape), info.reshape(batch)

    def healthy(a: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros_like(a), jnp.zeros(batch, np.int32)

    fixed = lax.stop_gradient(adjoint(a) if upper else a)
    partial, info = lax.cond(jnp.any(failed), diagnose, healthy, fixed)
    info = jnp.where(failed, info, 0).astype(np.int32)
    factor = jnp.where((info > 0)[..., None, None], partial, factor)
    return (adjoint(factor) if upper else factor), info


_NOT_POSITIVE = "The factorization could not be completed because the input is not positive-definite."


# aten::linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)
@kernel("linalg_cholesky_ex")
def linalg_cholesky_ex(self, upper=False, check_errors=False):
    factor, info = _cholesky_with_info(self, upper)
    if check_errors:
        require_regular(info == 0, "linalg.cholesky_ex", _NOT_POSITIVE)
    return factor, info


# aten::cholesky(Tensor self, bool upper=False) -> Tensor
@kernel("cholesky")
def cholesky(self, upper=False):
    require_square(self, "cholesky")
    factor, info = _cholesky_with_info(self, upper)
    require_regular(info == 0, "cholesky", _NOT_POSITIVE)
    return factor


# LU


def lu_factor(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """LU with its pivots counted from 1, and the first zero on U's diagonal, from 1, or 0.

    Without elements it is of any dtype, as ATen's.
    """
    if a.size == 0:
        *batch, m, n = a.shape
        return a, jnp.zeros((*batch, min(m, n)), np.int32), jnp.zeros(batch, np.int32)
    factors, pivots, _ = lax.linalg.lu(a)
    info = first_index(matrix_diagonal(lax.stop_gradient(factors)) == 0)
    return factors, pivots + 1, info


def _require_pivot(a: jax.Array, pivot: bool, name: str) -> None:
    if not pivot and a.size:
        raise RuntimeError(f"{name}: LU without pivoting is not implemented on the CPU")


# aten::linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots,
#     Tensor info)
@kernel("linalg_lu_factor_ex")
def linalg_lu_factor_ex(A, pivot=True, check_errors=False):
    _require_pivot(A, pivot, "linalg.lu_factor")
    factors, pivots, info = lu_factor(A)
    if check_errors:
        checks.require(info == 0, RuntimeError, "torch.linalg.lu_factor_ex: U has a zero on its diagonal.")
    return factors, pivots, info


def _unpack(factors: jax.Array) -> tuple[jax.Array, jax.Array]:
    m, n = factors.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(factors[..., :, :k], -1) + jnp.eye(m, k, dtype=factors.dtype)
    return lower, jnp.triu(factors[..., :k, :])


def _permutation_matrix(pivots: jax.Array, size: int, dtype: np.dtype) -> jax.Array:
    """P of A = P L U."""
    order = permutation_of(pivots, size)
    return cast(order[..., None, :] == lax.iota(order.dtype, size)[:, None], dtype)


# aten::linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)
@kernel("linalg_lu")
def linalg_lu(A, pivot=True):
    _require_pivot(A, pivot, "linalg.lu")
    factors, pivots, _ = lu_factor(A)
    permutation = _permutation_matrix(pivots, A.shape[-2], A.dtype) if pivot else jnp.zeros(0, A.dtype)
    return permutation, *_unpack(factors)


# aten::lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P,
#     Tensor L, Tensor U)
@kernel("lu_unpack")
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    nothing = jnp.zeros(0, LU_data.dtype)
    lower, upper = _unpack(LU_data) if unpack_data else (nothing, nothing)
    if not unpack_pivots:
        return nothing, lower, upper
    rows = LU_data.shape[-2]
    ok = (LU_pivots >= 1) & (LU_pivots <= rows)
    checks.require(ok, RuntimeError, "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive.")
    return _permutation_matrix(LU_pivots, rows, LU_data.dtype), lower, upper


def lu_solve(factors: jax.Array, pivots: jax.Array, b: jax.Array, *, left: bool = True, of_adjoint: bool = False):
    """Solves A x = b, or x A = b unless `left`, for A or its adjoint, given A's LU."""
    if not left:
        return adjoint(lu_solve(factors, pivots, adjoint(b), of_adjoint=not of_adjoint))
    order = permutation_of(pivots, factors.shape[-1])
    if not of_adjoint:
        x = solve_triangular(factors, permute_rows(b, order), lower=True, unit=True)
        return solve_triangular(factors, x, lower=False)
    x = solve_triangular(factors, b, lower=False, adjoint_a=True)
    x = solve_triangular(factors, x, lower=True, adjoint_a=True, unit=True)
    return permute_rows(x, jnp.argsort(order, axis=-1))


# aten::linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor
@kernel("linalg_lu_solve")
def linalg_lu_solve(LU, pivots, B, left=True, adjoint=False):
    return lu_solve(LU, pivots, B, left=left, of_adjoint=adjoint)


def stored_lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The LU that ATen's determinants return for a row-major matrix: of its transpose, unless it is complex.

    ATen's backward formulas rely on which of the two it is.
    """
    return lu_factor(a if is_complex(a.dtype) else matrix_transpose(a))


def solve_stored(factors: jax.Array, pivots: jax.Array, b: jax.Array) -> jax.Array:
    """Solves a x = b, given `stored_lu(a)`."""
    return lu_solve(factors, pivots, b, of_adjoint=not is_complex(factors.dtype))


# QR


def _qr(a: jax.Array, full: bool) -> tuple[jax.Array, jax.Array]:
    m, n = a.shape[-2:]
    if m >= n or full:
        return tuple(lax.linalg.qr(a, full_matrices=full))
    # JAX has no derivative of a wide matrix's QR: that of its square part, and Q^H times the rest
    q, r = lax.linalg.qr(a[..., :, :m], full_matrices=False)
    return q, jnp.concatenate([r, matmul(adjoint(q), a[..., :, m:])], -1)


# aten::linalg_qr(Tensor A, str mode="reduced") -> (Tensor Q, Tensor R)
@kernel("linalg_qr")
def linalg_qr(A, mode="reduced"):
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"qr received unrecognized mode '{mode}' but expected one of 'reduced', 'r', or 'complete'")
    m, n = A.shape[-2:]
    if A.size:
        q, r = _qr(A, full=mode == "complete" and m > n)
    else:
        k = m if mode == "complete" else min(m, n)
        q = jnp.broadcast_to(jnp.eye(m, k, dtype=A.dtype), (*A.shape[:-2], m, k))
        r = jnp.zeros((*A.shape[:-2], k, n), A.dtype)
    return (jnp.zeros(0, A.dtype) if mode == "r" else q), r


# aten::geqrf(Tensor self) -> (Tensor a, Tensor tau)
@kernel("geqrf")
def geqrf(self):
    reflectors, tau = jnp.linalg.qr(self, mode="raw")
    return matrix_transpose(reflectors), tau


def _reflected(a: jax.Array, tau: jax.Array, c: jax.Array, of_adjoint: bool) -> jax.Array:
    """H_1 ... H_k c, or its adjoint's product, for the reflectors H_i = 1 - tau_i v_i v_i^H in the columns of a.

    Slower than LAPACK's routine, but differentiable.
    """
    m, k = a.shape[-2], tau.shape[-1]
    at = lax.iota(np.int32, m)
    a, tau = jnp.moveaxis(a, -1, 0)[:k], jnp.moveaxis(tau, -1, 0)

    def step(c: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        i, column, factor = inputs
        v = jnp.where(at == i, 1, jnp.where(at > i, column, 0))[..., :, None]
        factor = jnp.conj(factor) if of_adjoint else factor
        return c - factor[..., None, None] * matmul(v, matmul(adjoint(v), c)), None

    out, _ = lax.scan(step, c, (lax.iota(np.int32, k), a, tau), reverse=not of_adjoint)
    return out


@jax.custom_jvp
def _householder_product(a: jax.Array, tau: jax.Array) -> jax.Array:
    return lax.linalg.householder_product(a, tau) if a.size and tau.shape[-1] else _slow_householder_product(a, tau)


def _slow_householder_product(a: jax.Array, tau: jax.Array) -> jax.Array:
    return _reflected(a, tau, jnp.broadcast_to(jnp.eye(*a.shape[-2:], dtype=a.dtype), a.shape), False)


@_householder_product.defjvp
def _householder_product_jvp(primals, tangents):
    return _householder_product(*primals), jax.jvp(_slow_householder_product, primals, tangents)[1]


# aten::linalg_householder_product(Tensor input, Tensor tau) -> Tensor
@kernel("linalg_householder_product")
def linalg_householder_product(input, tau):
    return _householder_product(input, tau)


# aten::ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor
@kernel("ormqr")
def ormqr(self, input2, input3, left=True, transpose=False):
    if self.size == 0 or input3.size == 0:
        return input3
    if left:
        return _reflected(self, input2, input3, transpose)
    return adjoint(_reflected(self, input2, adjoint(input3), not transpose))


# Eigenvalues


# aten::_linalg_eigh(Tensor A, str UPLO="L", bool compute_v=True) -> (Tensor eigenvalues, Tensor eigenvectors)
@kernel("_linalg_eigh")
def linalg_eigh(A, UPLO="L", compute_v=True):
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    if A.size == 0:
        return jnp.zeros(A.shape[:-1], to_real(A.dtype)), A if compute_v else jnp.zeros(0, A.dtype)
    lower = UPLO.upper() == "L"
    read = jnp.tril(A) if lower else jnp.triu(A)
    mirrored = adjoint(jnp.tril(A, -1) if lower else jnp.triu(A, 1))
    # the other triangle is not read, yet ATen's gradient is that of a Hermitian matrix as a whole
    unread = lax.stop_gradient(mirrored) + (A - lax.stop_gradient(A))
    below = jnp.tri(A.shape[-1], k=0 if lower else -1, dtype=bool)
    whole = jnp.where(below == lower, read, unread)
    vectors, values = lax.linalg.eigh(whole, lower=lower, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(0, A.dtype)


def _require_finite(a: jax.Array, name: str) -> None:
    checks.require(jnp.isfinite(a), RuntimeError, f"{name}: input tensor should not contain infs or NaNs.")


@jax.custom_jvp
def _eig(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, vectors = lax.linalg.eig(a, compute_left_eigenvectors=False)
    return values, vectors


@_eig.defjvp
def _eig_jvp(primals, tangents):
    values, vectors = _eig(*primals)
    change = jnp.linalg.solve(vectors, matmul(cast(tangents[0], vectors.dtype), vectors))
    identity = jnp.eye(values.shape[-1], dtype=values.dtype)
    turned = change / (values[..., None, :] - values[..., :, None] + identity) * (1 - identity)
    moved = matmul(vectors, turned)
    # eigenvectors have norm 1
    along = jnp.real(jnp.sum(jnp.conj(vectors) * moved, -2, keepdims=True))
    return (values, vectors), (matrix_diagonal(change), moved - vectors * along)


# aten::linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)
@kernel("linalg_eig")
def linalg_eig(self):
    _require_finite(self, "torch.linalg.eig")
    return _eig(self)


# aten::_linalg_eigvals(Tensor self) -> Tensor
@kernel("_linalg_eigvals")
def linalg_eigvals(self):
    _require_finite(self, "torch.linalg.eigvals")
    return lax.linalg.eig(self, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


# Singular values


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def svd_of(a: jax.Array, full: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """U, S, V^H. Only the first min(m, n) columns of U and V have a derivative."""
    m, n = a.shape[-2:]
    if a.size == 0:
        k = min(m, n)
        rows, columns = (m, n) if full else (k, k)
        identities = (jnp.eye(m, rows, dtype=a.dtype), jnp.eye(columns, n, dtype=a.dtype))
        u, vh = (jnp.broadcast_to(i, (*a.shape[:-2], *i.shape)) for i in identities)
        return u, jnp.zeros((*a.shape[:-2], k), to_real(a.dtype)), vh
    return tuple(lax.linalg.svd(a, full_matrices=full))


@svd_of.defjvp
def _svd_jvp(full, primals, tangents):
    (a,), (change,) = primals, tangents
    m, n = a.shape[-2:]
    k = min(m, n)
    full_u, s, full_vh = svd_of(a, full)
    u, v = full_u[..., :, :k], adjoint(full_vh[..., :k, :])
    inner = matmul(adjoint(u), matmul(change, v))
    row, column = s[..., None, :], s[..., :, None]
    identity = jnp.eye(k, dtype=s.dtype)
    gaps = (1 - identity) / ((row - column) * (row + column) + identity)
    sum_, difference = inner * row, inner * column
    du = matmul(u, gaps * (sum_ + adjoint(sum_)))
    dv = matmul(v, gaps * (difference + adjoint(difference)))
    if is_complex(a.dtype):  # the phase, shared between U and V
        phase = 1j * jnp.imag(matrix_diagonal(inner)) / (2 * s)
        du, dv = du + u * phase[..., None, :], dv - v * phase[..., None, :]
    if m > k:
        du = du + (matmul(change, v) - matmul(u, inner)) / row
    if n > k:
        dv = dv + (matmul(adjoint(change), u) - matmul(v, adjoint(inner))) / row
    rest_u, rest_v = full_u.shape[-1] - k, full_vh.shape[-2] - k
    padding = [(0, 0)] * (a.ndim - 1)
    du, dvh = jnp.pad(du, [*padding, (0, rest_u)]), adjoint(jnp.pad(dv, [*padding, (0, rest_v)]))
    return (full_u, s, full_vh), (du, jnp.real(matrix_diagonal(inner)), dvh)


def require_svd(a: jax.Array) -> None:
    """Requires a matrix without NaN. Infinite elements pass: LAPACK returns singular values that are NaN.

    Raises:
        NotImplementedError: a dtype of half precision, of a matrix that has elements.
    """
    if a.size and a.dtype.itemsize < 4:
        raise NotImplementedError(f'"linalg_svd_cpu" not implemented for {a.dtype}')
    words = "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values."
    checks.require(~jnp.isnan(a), np.linalg.LinAlgError, words)


# aten::_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> (Tensor U,
#     Tensor S, Tensor Vh)
@kernel("_linalg_svd")
def linalg_svd(A, full_matrices=False, compute_uv=True, driver=None):
    if driver is not None:
        raise RuntimeError("torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs")
    require_svd(A)
    u, s, vh = svd_of(A, full_matrices)
    if not compute_uv:
        return jnp.zeros(0, A.dtype), s, jnp.zeros(0, A.dtype)
    return u, s, vh
