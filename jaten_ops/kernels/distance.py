"""Distances between rows: of two matrices (cdist), of one matrix (pdist).

The gradients are ATen's, which are 0 where a distance is 0: aten/src/ATen/native/cpu/DistanceOpsKernel.cpp.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaten_ops.registry import kernel

from ..kernel_base.extrema import reduce_max

_MATMUL_FROM = 25  # rows; with more, ATen computes Euclidean distances as a matrix product


def _norm(difference: jax.Array, p: float) -> jax.Array:
    """The p-norm over the last dim."""
    size = jnp.abs(difference)
    if p == 0:
        return jnp.sum(jnp.minimum(jnp.ceil(size), 1), -1)  # NaN stays NaN
    if p == 1:
        return jnp.sum(size, -1)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, -1))
    if p == math.inf:
        return jnp.maximum(reduce_max(size, (size.ndim - 1,)), 0)
    return jnp.sum(size**p, -1) ** (1 / p)


def _norm_gradient(difference: jax.Array, grad: jax.Array, norm: jax.Array, p: float) -> jax.Array:
    """The gradient of `_norm` by the difference, 0 where the norm is 0."""
    grad, norm = grad[..., None], norm[..., None]
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return grad * jnp.sign(difference)
    if p == math.inf:
        apart = jnp.ceil(jnp.abs(jnp.abs(difference) - norm))
        return grad * jnp.sign(difference) * (1 - jnp.minimum(apart, 1))
    zero = norm == 0
    safe = jnp.where(zero, 1, norm)
    if p == 2:
        return jnp.where(zero, 0, grad * difference / safe)
    still = difference == 0
    size = jnp.where(still, 1, jnp.abs(difference))
    slope = jnp.where(still, 0, jnp.sign(difference) * size ** (p - 1))
    return jnp.where(zero, 0, slope * grad / safe ** (p - 1))


# aten::_euclidean_dist(Tensor x1, Tensor x2) -> Tensor
@kernel("_euclidean_dist")
def euclidean_dist(x1, x2):
    """Euclidean distances as one matrix product: |a|^2 - 2 a.b + |b|^2, (*, P, M) and (*, R, M) to (*, P, R)."""
    norm1, norm2 = (jnp.sum(x * x, -1, keepdims=True) for x in (x1, x2))
    left = jnp.concatenate([-2 * x1, norm1, jnp.ones_like(norm1)], -1)
    right = jnp.concatenate([x2, jnp.ones_like(norm2), norm2], -1)
    squares = left @ jnp.swapaxes(right, -1, -2)
    positive = squares > 0
    root = jnp.sqrt(jnp.where(positive, squares, 1))
    return jnp.where(positive | jnp.isnan(squares), root + jnp.where(positive, 0, squares), 0)


def _pairs(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return x1[..., :, None, :] - x2[..., None, :, :]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _cdist(x1: jax.Array, x2: jax.Array, p: float, by_product: bool) -> jax.Array:
    if by_product:
        return euclidean_dist(x1, x2)
    differences = _pairs(x1, x2)
    if p == math.inf:  # ATen's loop leaves out NaN here, unlike that of pdist
        differences = jnp.where(jnp.isnan(differences), 0, differences)
    return _norm(differences, p)


def _cdist_forward(x1, x2, p, by_product):
    distances = _cdist(x1, x2, p, by_product)
    return distances, (x1, x2, distances)


def _cdist_gradients(p, by_product, saved, grad):
    x1, x2, distances = saved
    gradient = _norm_gradient(_pairs(x1, x2), grad, distances, p)
    return jnp.sum(gradient, -2), -jnp.sum(gradient, -3)


_cdist.defvjp(_cdist_forward, _cdist_gradients)


# aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor
@kernel("_cdist_forward", static=("p",))
def cdist_forward(x1, x2, p, compute_mode):
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError("X1 and X2 must have the same number of columns")
    batch = jnp.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x1, x2 = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (x1, x2))
    large = x1.shape[-2] > _MATMUL_FROM or x2.shape[-2] > _MATMUL_FROM
    by_product = p == 2 and (compute_mode == 1 or (compute_mode in (None, 0) and large))
    return _cdist(x1, x2, float(p), by_product)


# aten::_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor
@kernel("_cdist_backward", static=("p",))
def cdist_backward(grad, x1, x2, p, cdist):
    batch = jnp.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    if 0 in (*batch, *x1.shape[-2:], x2.shape[-2]):  # ATen does not broadcast what is empty
        return jnp.zeros_like(x1)
    x1, x2 = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (x1, x2))
    return jnp.sum(_norm_gradient(_pairs(x1, x2), grad, cdist, float(p)), -2)


# pdist: the distances of rows i < j, one after the other


def _upper(size: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.triu_indices(size, 1)
    return rows.astype(np.int32), columns.astype(np.int32)


def _symmetric(values: jax.Array, size: int) -> jax.Array:
    """The matrix with these values above and below its diagonal, 0 on it."""
    rows, columns = _upper(size)
    upper = jnp.zeros((size, size), values.dtype).at[rows, columns].set(values)
    return upper + upper.T


def _pdist_gradient(grad, x, p, distances):
    size = x.shape[0]
    differences = jnp.where(np.eye(size, dtype=bool)[..., None], 0, _pairs(x, x))  # infinity less itself is NaN
    return jnp.sum(_norm_gradient(differences, _symmetric(grad, size), _symmetric(distances, size), p), 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _pdist(x: jax.Array, p: float) -> jax.Array:
    rows, columns = _upper(x.shape[0])
    return _norm(x[rows] - x[columns], p)


_pdist.defvjp(
    lambda x, p: ((distances := _pdist(x, p)), (x, distances)),
    lambda p, saved, grad: (_pdist_gradient(grad, saved[0], p, saved[1]),),
)


# aten::_pdist_forward(Tensor self, float p=2.) -> Tensor
@kernel("_pdist_forward", static=("p",))
def pdist_forward(self, p=2.0):
    return _pdist(self, float(p))


# aten::_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor
@kernel("_pdist_backward", static=("p",))
def pdist_backward(grad, self, p, pdist):
    return _pdist_gradient(grad, self, float(p), pdist)
