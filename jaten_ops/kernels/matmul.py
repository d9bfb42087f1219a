"""Matrix products.

float16 and bfloat16 products are accumulated in float32 and rounded once; integers wrap.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.dot_reductions import contract
from ..kernel_base.promotion import cast, compute_type, is_integral, promote
from .conversion import convert
from .ragged import by_group, over_group

_MM = (((1,), (0,)), ((), ()))
_BMM = (((2,), (1,)), ((0,), (0,)))
_ADDBMM = (((0, 2), (0, 1)), ((), ()))
_VECTORS = (((0,), (0,)), ((), ()))


def require_same_dtype(op: str, *tensors: Any) -> None:
    """Raises ATen's RuntimeError where the tensors of a product have different dtypes; there is no promotion."""
    dtypes = [np.dtype(t.dtype) for t in tensors]
    if len(set(dtypes)) > 1:
        raise RuntimeError(f"{op}: expected tensors of one dtype, but got {', '.join(map(str, dtypes))}")


def _times(factor: Any, x: jax.Array) -> jax.Array:
    if isinstance(factor, int | float) and factor == 1:
        return x
    return cast(factor, x.dtype) * x


def blend(self: jax.Array, product: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    """`beta * self + alpha * product` in the dtype of `self`, rounded once. NaN in `self` is ignored if `beta` is 0."""
    dtype = self.dtype
    product = _times(alpha, product)
    if isinstance(beta, int | float | complex) and beta == 0:
        return cast(product, dtype)
    scaled = _times(beta, cast(self, product.dtype))
    if not isinstance(beta, int | float | complex):
        scaled = jnp.where(beta == 0, jnp.zeros((), scaled.dtype), scaled)
    return cast(scaled + product, dtype)


# aten::mm(Tensor self, Tensor mat2) -> Tensor
@kernel("mm")
def mm(self, mat2):
    require_same_dtype("mm", self, mat2)
    return cast(contract(self, mat2, _MM), self.dtype)


# aten::bmm(Tensor self, Tensor mat2) -> Tensor
@kernel("bmm")
def bmm(self, mat2):
    require_same_dtype("bmm", self, mat2)
    return cast(contract(self, mat2, _BMM), self.dtype)


# aten::mv(Tensor self, Tensor vec) -> Tensor
@kernel("mv")
def mv(self, vec):
    require_same_dtype("mv", self, vec)
    return cast(contract(self, vec, _MM), self.dtype)


# aten::dot(Tensor self, Tensor tensor) -> Tensor
@kernel("dot")
def dot(self, tensor):
    require_same_dtype("dot", self, tensor)
    return cast(contract(self, tensor, _VECTORS), self.dtype)


# aten::vdot(Tensor self, Tensor other) -> Tensor
@kernel("vdot")
def vdot(self, other):
    return dot(jnp.conj(self), other)


# aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@kernel("addmm")
def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    require_same_dtype("addmm", self, mat1, mat2)
    return blend(self, contract(mat1, mat2, _MM), beta, alpha)


# aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@kernel("baddbmm")
def baddbmm(self, batch1, batch2, *, beta=1, alpha=1):
    require_same_dtype("baddbmm", self, batch1, batch2)
    return blend(self, contract(batch1, batch2, _BMM), beta, alpha)


# aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@kernel("addbmm")
def addbmm(self, batch1, batch2, *, beta=1, alpha=1):
    require_same_dtype("addbmm", self, batch1, batch2)
    return blend(self, contract(batch1, batch2, _ADDBMM), beta, alpha)


# aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@kernel("addmv")
def addmv(self, mat, vec, *, beta=1, alpha=1):
    require_same_dtype("addmv", self, mat, vec)
    return blend(self, contract(mat, vec, _MM), beta, alpha)


# aten::addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@kernel("addr")
def addr(self, vec1, vec2, *, beta=1, alpha=1):
    # a pointwise op, unlike the others: it promotes, and takes bool
    self, vec1, vec2 = promote(self, vec1, vec2)
    if is_integral(self.dtype) and not all(is_integral(jnp.result_type(factor)) for factor in (beta, alpha)):
        raise RuntimeError("For integral input tensors, arguments beta and alpha must not be floating point numbers.")
    vec1, vec2 = vec1[:, None], vec2[None, :]
    if self.dtype == bool:
        return (cast(beta, bool) & self) | (cast(alpha, bool) & vec1 & vec2)
    compute = compute_type(self.dtype)
    return blend(self, cast(vec1, compute) * cast(vec2, compute), beta, alpha)


# aten::_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1,
#     bool use_gelu=False) -> Tensor
@kernel("_addmm_activation")
def addmm_activation(self, mat1, mat2, *, beta=1, alpha=1, use_gelu=False):
    require_same_dtype("_addmm_activation", self, mat1, mat2)
    compute = compute_type(self.dtype)
    total = blend(cast(self, compute), contract(mat1, mat2, _MM), beta, alpha)
    return cast(jax.nn.gelu(total, approximate=False) if use_gelu else jax.nn.relu(total), self.dtype)


# The variants with `out_dtype` return the accumulated product unrounded; ATen has them for CUDA.


# aten::mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor
@kernel("mm.dtype")
def mm_dtype(self, mat2, out_dtype):
    require_same_dtype("mm", self, mat2)
    return cast(contract(self, mat2, _MM), out_dtype)


# aten::bmm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor
@kernel("bmm.dtype")
def bmm_dtype(self, mat2, out_dtype):
    require_same_dtype("bmm", self, mat2)
    return cast(contract(self, mat2, _BMM), out_dtype)


# aten::addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1,
#     Scalar alpha=1) -> Tensor
@kernel("addmm.dtype")
def addmm_dtype(self, mat1, mat2, out_dtype, *, beta=1, alpha=1):
    return blend(cast(self, out_dtype), contract(mat1, mat2, _MM), beta, alpha)


# aten::baddbmm.dtype(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, Scalar beta=1,
#     Scalar alpha=1) -> Tensor
@kernel("baddbmm.dtype")
def baddbmm_dtype(self, batch1, batch2, out_dtype, *, beta=1, alpha=1):
    return blend(cast(self, out_dtype), contract(batch1, batch2, _BMM), beta, alpha)


# aten::_int_mm(Tensor self, Tensor mat2) -> Tensor
@kernel("_int_mm")
def int_mm(self, mat2):
    return lax.dot_general(self, mat2, _MM, preferred_element_type=jnp.int32)


# aten::_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor
@kernel("_weight_int8pack_mm")
def weight_int8pack_mm(self, mat2, scales):
    compute = compute_type(self.dtype)
    product = lax.dot_general(cast(self, compute), cast(mat2, compute), (((1,), (1,)), ((), ())))
    return cast(product * cast(scales, compute), self.dtype)


# aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None,
#     Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor
@kernel("_scaled_mm")
def scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """Product of float8 matrices with one scale a tensor or a row. `use_fast_accum` is about hardware only."""
    product = lax.dot_general(cast(self, jnp.float32) * scale_a, cast(mat2, jnp.float32) * scale_b, _MM)
    if bias is not None:
        product = product + cast(bias, jnp.float32)
    dtype = np.dtype(out_dtype or self.dtype)
    if scale_result is not None and dtype.itemsize == 1:  # ATen ignores it where the result needs no scale
        product = product / scale_result
    return convert(product, dtype)  # a float8 without infinity saturates


# Products of more dimensions, which have no operator of ATen's: it composes them of the above


def product(self, other):
    """`self @ other`, with each batch dimension apart."""
    return cast(jnp.matmul(self, other, preferred_element_type=compute_type(self.dtype)), self.dtype)


def affine(input, weight, bias):
    """`input @ weight.T + bias`, rounded once."""
    found = contract(input, weight, (((input.ndim - 1,), (1,)), ((), ())))
    return cast(found, input.dtype) if bias is None else blend(bias, found, 1, 1)


def affine_gradients(grad, input, weight, bias):
    """Gradients of `affine`: to the input if a weight is given, to the weight if an input is, and to the bias."""
    lead = tuple(range(grad.ndim - 1))
    return (
        None if weight is None else cast(contract(grad, weight, (((grad.ndim - 1,), (0,)), ((), ()))), grad.dtype),
        None if input is None else cast(contract(grad, input, ((lead, lead), ((), ()))), grad.dtype),
        cast(cast(grad, compute_type(grad.dtype)).sum(lead), grad.dtype) if bias else None,
    )


def product_gradients(grad, self, other, self_sizes, other_sizes):
    """Gradients of `product`: to `self`, of some sizes, if `other` is given, and to `other` if `self` is."""
    wide = compute_type(grad.dtype)
    given, left, right = (None if x is None else cast(x, wide) for x in (grad, self, other))
    by_self, by_other = (jax.ShapeDtypeStruct(tuple(sizes), wide) for sizes in (self_sizes, other_sizes))
    found = (
        None if right is None else jax.linear_transpose(lambda x: jnp.matmul(x, right), by_self)(given)[0],
        None if left is None else jax.linear_transpose(lambda x: jnp.matmul(left, x), by_other)(given)[0],
    )
    return tuple(None if x is None else cast(x, grad.dtype) for x in found)


def bilinear_form(input1, input2, weight, bias):
    """`x1 @ w @ x2 + b` for each of the matrices w, with each leading dimension of the inputs apart."""
    operands = [cast(x, compute_type(input1.dtype)) for x in (input1, weight, input2)]
    found = jnp.einsum("...i,oij,...j->...o", *operands, optimize="optimal")
    return cast(found if bias is None else found + cast(bias, found.dtype), input1.dtype)


# aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None,
#     ScalarType? out_dtype=None) -> Tensor
@kernel("_grouped_mm")
def grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    """A product for each group. A 2-d operand holds the groups side by side, with ends `offs`, along the rows of
    `self`, the columns of `mat2`, or, if both are 2-d, the dimension that is summed over; a 3-d one stacks them."""
    require_same_dtype("_grouped_mm", self, mat2)
    compute = compute_type(self.dtype)
    if self.ndim == mat2.ndim == 3:
        product = contract(self, mat2, _BMM)
    else:
        if self.ndim == mat2.ndim == 2:
            product = over_group(self.T, mat2, offs)
        elif self.ndim == 2:
            product = by_group(self, mat2, offs)
        else:
            product = by_group(mat2.T, self.swapaxes(1, 2), offs).T
    if bias is not None:
        product = cast(product, compute) + cast(bias, compute)
    return cast(product, out_dtype or self.dtype)


# aten::linear_backward(Tensor self, Tensor grad_output, Tensor weight, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@kernel("linear_backward")
def linear_backward(self, grad_output, weight, output_mask):
    """Gradients of `linear` to its input, weight and bias. ATen has it for nested tensors and MPS only."""
    rows = grad_output.reshape(math.prod(grad_output.shape[:-1]), grad_output.shape[-1])
    want_input, want_weight, want_bias = output_mask
    return (
        jnp.matmul(grad_output, weight) if want_input else None,
        mm(rows.T, self.reshape(math.prod(self.shape[:-1]), self.shape[-1])) if want_weight else None,
        cast(rows.sum(0), grad_output.dtype) if want_bias else None,
    )


# aten::matmul_backward(Tensor grad, Tensor self, Tensor other, bool[2] mask) -> (Tensor, Tensor)
@kernel("matmul_backward")
def matmul_backward(grad, self, other, mask):
    """Gradients of `matmul` to its operands. ATen has it for nested tensors and MPS only."""
    require_same_dtype("matmul_backward", grad, self, other)
    wide = compute_type(self.dtype)
    _, pull = jax.vjp(jnp.matmul, cast(self, wide), cast(other, wide))
    gradients = (cast(jnp.conj(g), self.dtype) for g in pull(jnp.conj(cast(grad, wide))))
    return tuple(g if on else None for g, on in zip(gradients, mask, strict=True))


# aten::_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim,
#     int unroll_dim=1) -> Tensor
@kernel("_trilinear")
def trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """`(i1 * i2 * i3).sum(sumdim)` after unsqueezing each at the dims `expand`. `unroll_dim` only affects loops."""
    operands, ndim = [i1, i2, i3], i1.ndim + len(expand1)
    labels, shape = [], [1] * ndim
    for at, (x, expand) in enumerate(zip(operands, (expand1, expand2, expand3), strict=True)):
        dims = [d for d in range(ndim) if d not in expand]
        for d, size in zip(dims, x.shape, strict=True):
            shape[d] = size if shape[d] == 1 else shape[d]
        kept = [d for d, size in zip(dims, x.shape, strict=True) if size != 1]  # a dim of size 1 broadcasts
        operands[at] = x.reshape([size for size in x.shape if size != 1])
        labels.append(kept)
    known = {d for kept in labels for d in kept}
    result = [d for d in range(ndim) if d not in sumdim]
    compute = compute_type(i1.dtype)
    pairs = [y for x, kept in zip(operands, labels, strict=True) for y in (cast(x, compute), kept)]
    total = jnp.einsum(*pairs, [d for d in result if d in known], optimize="optimal")
    return cast(total.reshape([shape[d] for d in result]), i1.dtype)
