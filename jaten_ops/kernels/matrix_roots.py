"""The square root of a positive definite matrix, and the polar decomposition.

Their derivatives solve the linear equations that the derivatives of x x = a and of u h = a are. The functions came to
ATen with torch 2.14.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from .decomposition import require_svd, svd_of
from .linalg import solve
from .matrices import adjoint, matmul, require_square


def _hermitian(a: jax.Array) -> jax.Array:
    return (a + adjoint(a)) / 2


def _roots(values: jax.Array) -> jax.Array:
    """Square roots, 0 of negative numbers."""
    return lax.sqrt(jnp.where(values < 0, jnp.zeros_like(values), values))


def _eigh(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The eigenvectors and eigenvalues of a Hermitian matrix, of which only the lower triangle is read."""
    return tuple(lax.linalg.eigh(a, lower=True, symmetrize_input=False))


def _solve_sum(f: jax.Array, vectors: jax.Array, values: jax.Array, b: jax.Array) -> jax.Array:
    """x with f x + x f = b, for a Hermitian matrix f, whose eigenvectors and eigenvalues are not differentiated."""
    vectors, values = lax.stop_gradient((vectors, values))
    sums = values[..., :, None] + values[..., None, :]

    def solved(b: jax.Array) -> jax.Array:
        inner = matmul(adjoint(vectors), matmul(b, vectors)) / sums
        return matmul(vectors, matmul(inner, adjoint(vectors)))

    return lax.custom_linear_solve(
        lambda x: matmul(f, x) + matmul(x, f),
        b,
        solve=lambda _, b: solved(b),
        transpose_solve=lambda _, b: jnp.conj(solved(jnp.conj(b))),
    )


@jax.custom_jvp
def _root_of(a: jax.Array) -> jax.Array:
    vectors, values = _eigh(a)
    return matmul(vectors * _roots(values)[..., None, :], adjoint(vectors))


@_root_of.defjvp
def _root_jvp(primals, tangents):
    root = _root_of(*primals)
    vectors, values = _eigh(lax.stop_gradient(primals[0]))
    return root, _solve_sum(root, vectors, _roots(values), _hermitian(tangents[0]))


# aten::linalg_matrix_sqrth(Tensor self) -> Tensor
@kernel("linalg_matrix_sqrth")
def linalg_matrix_sqrth(self):
    require_square(self, "linalg.matrix_sqrth")
    return _root_of(self) if self.size else self


@jax.custom_jvp
def _polar(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """u and h of a (..., m, n) with m >= n: u has orthonormal columns, and h is positive semidefinite."""
    u, s, vh = svd_of(a, False)
    return matmul(u, vh), _hermitian(matmul(adjoint(vh) * s[..., None, :], vh))


@_polar.defjvp
def _polar_jvp(primals, tangents):
    (a,), (change,) = primals, tangents
    u, h = _polar(a)
    inner = matmul(adjoint(u), change)
    turn = _solve_sum(h, *_eigh(lax.stop_gradient(h)), inner - adjoint(inner))  # adjoint(u) du
    outside = adjoint(solve(h, adjoint(change - matmul(u, inner))))
    return (u, h), (matmul(u, turn) + outside, _hermitian(inner - matmul(turn, h)))


# aten::linalg_polar(Tensor A) -> (Tensor U, Tensor H)
@kernel("linalg_polar")
def linalg_polar(A):
    require_svd(A)
    if not A.size:
        return A, jnp.zeros((*A.shape[:-2], A.shape[-1], A.shape[-1]), A.dtype)
    return _polar(A)
