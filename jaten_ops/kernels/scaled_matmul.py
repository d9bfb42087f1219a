"""Products of float8 matrices whose scales are given for the tensor, for rows, or for blocks.

Each operand is multiplied with its scales, in float32. Source: aten/src/ATen/native/cuda/ScaledBlas.cpp and
ScaledGroupMM.cu; on CPU ATen has the scales of tensors and rows only. Operands are (rows, depth): `mat2` transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast
from .matmul import blend, grouped_mm, scaled_mm
from .sorting import binary_search

_F32 = np.dtype("float32")

# torch.nn.functional.ScalingType and SwizzleType
_TENSOR, _ROW, _BLOCK_16, _BLOCK_32, _BLOCK_128, _SQUARE_128 = range(6)
_SWIZZLED = 1

_PAIRS = {
    ((_TENSOR,), (_TENSOR,)),
    ((_ROW,), (_ROW,)),
    ((_BLOCK_16,), (_BLOCK_16,)),
    ((_BLOCK_16, _TENSOR), (_BLOCK_16, _TENSOR)),
    ((_BLOCK_32,), (_BLOCK_32,)),
    ((_BLOCK_128,), (_BLOCK_128,)),
    ((_BLOCK_128,), (_SQUARE_128,)),
    ((_SQUARE_128,), (_BLOCK_128,)),
}


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _unswizzled(scale: jax.Array, rows: int, columns: int) -> jax.Array:
    """(rows, columns) from tiles of 128 rows and 4 columns, each stored as 32 x 4 x 4: row % 32, row // 32, column."""
    tiles = scale.reshape(_up(rows, 128) // 128, _up(columns, 4) // 4, 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(_up(rows, 128), _up(columns, 4))[:rows, :columns]


def _spread(scale: jax.Array, rows: int, depth: int, high: int, wide: int) -> jax.Array:
    """Scales of blocks of `high` rows and `wide` columns, for each element."""
    return jnp.repeat(jnp.repeat(scale, high, 0)[:rows], wide, 1)[:, :depth]


def _factors(scale: jax.Array, recipe: int, swizzle: int, rows: int, depth: int, name: str) -> jax.Array:
    """Scale factors for the elements (rows, depth) of an operand."""
    scale_of_blocks = {_BLOCK_16: 16, _BLOCK_32: 32}
    if recipe in scale_of_blocks:
        wide = scale_of_blocks[recipe]
        columns = -(-depth // wide)
        size = _up(rows, 128) * _up(columns, 4) if swizzle == _SWIZZLED else rows * columns
        _check(scale.size == size, f"{name} must have {size} elements, got {scale.size}")
        scale = cast(scale, _F32)
        blocks = _unswizzled(scale, rows, columns) if swizzle == _SWIZZLED else scale.reshape(rows, columns)
        return _spread(blocks, rows, depth, 1, wide)
    _check(scale.dtype == _F32, f"{name} must be of float32, got {scale.dtype}")
    _check(swizzle != _SWIZZLED, f"{name} of this recipe has no swizzle")
    if recipe == _TENSOR:
        _check(scale.size == 1, f"{name} must have 1 element, got {scale.size}")
        return scale.reshape(1, 1)
    if recipe == _ROW:
        _check(scale.size == rows, f"{name} must have {rows} elements, got {scale.size}")
        return scale.reshape(rows, 1)
    columns = depth // 128
    if recipe == _BLOCK_128:
        _check(scale.shape == (rows, columns), f"{name} must have shape [{rows}, {columns}], got {list(scale.shape)}")
        return _spread(scale, rows, depth, 1, 128)
    shape = (_up(columns, 4), rows // 128)
    _check(scale.shape == shape, f"{name} must have shape {list(shape)}, got {list(scale.shape)}")
    return _spread(scale[:columns].T, rows, depth, 128, 128)


def _scaled(x: jax.Array, scales: Sequence, recipes: Sequence[int], swizzles: Sequence[int], name: str) -> jax.Array:
    """An operand (rows, depth) times its scales."""
    _check(len(scales) == len(recipes), f"{name} must be {len(recipes)} tensors, got {len(scales)}")
    swizzles = (*swizzles, *[0] * len(recipes))
    out = cast(x, _F32)
    for scale, recipe, swizzle in zip(scales, recipes, swizzles[: len(recipes)], strict=True):
        out = out * _factors(scale, recipe, swizzle, *x.shape, name)
    return out


def _check_recipes(recipe_a: Sequence[int], recipe_b: Sequence[int]) -> None:
    known = (tuple(recipe_a), tuple(recipe_b)) in _PAIRS
    _check(known, f"Invalid scaling configuration: no product of recipes {list(recipe_a)} and {list(recipe_b)}")


# aten::_scaled_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] swizzle_a, Tensor[] scale_b,
#     int[] recipe_b, int[] swizzle_b, Tensor? bias, ScalarType? out_dtype, int[] contraction_dim=[],
#     bool use_fast_accum=False) -> Tensor
@kernel("_scaled_mm_v2")
def scaled_mm_v2(
    self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, contraction_dim=(),
    use_fast_accum=False
):  # fmt: skip
    _check_recipes(recipe_a, recipe_b)
    if contraction_dim:
        dim_a, dim_b = contraction_dim
        _check(self.shape[dim_a] == mat2.shape[dim_b], f"sizes of {list(self.shape)} and {list(mat2.shape)} differ")
    a = _scaled(self, scale_a, recipe_a, swizzle_a, "scale_a")
    b = _scaled(mat2.T, scale_b, recipe_b, swizzle_b, "scale_b").T
    one = jnp.ones((), _F32)
    return scaled_mm(a, b, one, one, bias, None, out_dtype or self.dtype)


# aten::_scaled_addmm(Tensor self, Tensor mat1, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] swizzle_a,
#     Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, int[] contraction_dim=[], *, Scalar beta=1, Scalar alpha=1,
#     bool use_fast_accum=False) -> Tensor
@kernel("_scaled_addmm")
def scaled_addmm(
    self, mat1, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim=(), *, beta=1,
    alpha=1, use_fast_accum=False
):  # fmt: skip
    product = scaled_mm_v2(
        mat1, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, None, _F32, contraction_dim
    )
    _check(self.shape == product.shape, f"input must have shape {list(product.shape)}, got {list(self.shape)}")
    return blend(self, product, beta, alpha)


# Groups, as in `_grouped_mm`: one scale for each row of each group


def _group_of(offs: jax.Array, n: int) -> jax.Array:
    """The group of each of n rows."""
    found = binary_search(offs, lax.iota(offs.dtype, n), True)
    return jnp.minimum(found, offs.shape[0] - 1)


def _row_factors(self: jax.Array, mat2: jax.Array, scale_a: jax.Array, scale_b: jax.Array, offs: jax.Array | None):
    """The factors of rows and of columns of the product, as they broadcast to it."""
    rows, columns = self.shape[-2], mat2.shape[-1]
    if self.ndim == mat2.ndim:
        return scale_a.reshape(-1, rows, 1), scale_b.reshape(-1, 1, columns)
    if self.ndim == 2:
        return scale_a.reshape(rows, 1), scale_b[_group_of(offs, rows)]
    return scale_a[_group_of(offs, columns)].T, scale_b.reshape(1, columns)


def _check_row_scales(self, mat2, scale_a, scale_b, offs) -> None:
    _check(scale_a.dtype == scale_b.dtype == _F32, f"Expected scales of float32, got {scale_a.dtype}, {scale_b.dtype}")
    groups = offs.shape[0] if self.ndim == mat2.ndim == 2 else 1
    for name, scale, x, size in (
        ("scale_a", scale_a, self, self.shape[-2]),
        ("scale_b", scale_b, mat2, mat2.shape[-1]),
    ):
        shape = (size * groups,) if x.ndim == 2 else (x.shape[0], size)
        _check(scale.shape == shape, f"Expected {name} of shape {list(shape)}, got {list(scale.shape)}")


def _grouped_by_rows(self, mat2, scale_a, scale_b, offs, out_dtype):
    _check_row_scales(self, mat2, scale_a, scale_b, offs)
    product = grouped_mm(cast(self, _F32), cast(mat2, _F32), offs)
    of_rows, of_columns = _row_factors(self, mat2, scale_a, scale_b, offs)
    return cast(product * of_rows * of_columns, out_dtype)


def _grouped_by_blocks(self, mat2, scale_a, scale_b, offs, out_dtype):
    """Scales of blocks of 32, swizzled. Those of `self` begin at a multiple of 128 rows for each group."""
    if self.ndim != 2 or mat2.ndim != 3:
        raise NotImplementedError("_scaled_grouped_mm: block scales are for a 2-d and a 3-d operand, got others")
    (total, depth), (groups, _, columns) = self.shape, mat2.shape
    blocks = -(-depth // 32)
    width = _up(blocks, 4)
    _check(
        scale_a.size % (128 * width) == 0, f"Expected scale_a of {width} columns and rows by 128, got {scale_a.size}"
    )
    size = _up(columns, 128) * width
    _check(scale_b.shape == (groups, size), f"Expected scale_b of shape {[groups, size]}, got {list(scale_b.shape)}")
    starts = jnp.pad(offs, (1, 0))
    padded = -(-(starts[1:] - starts[:-1]) // 128) * 128
    row, group = lax.iota(offs.dtype, total), _group_of(offs, total)
    at = (jnp.cumsum(padded) - padded)[group] + row - starts[group]
    of_a = _unswizzled(cast(scale_a, _F32), scale_a.size // width, blocks)[at]
    of_b = jax.vmap(lambda s: _unswizzled(s, columns, blocks))(cast(scale_b, _F32))
    a = cast(self, _F32) * _spread(of_a, total, depth, 1, 32)
    b = cast(mat2, _F32) * jnp.repeat(of_b, 32, 2)[..., :depth].swapaxes(1, 2)
    return cast(grouped_mm(a, b, offs), out_dtype)


# aten::_scaled_grouped_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? offs=None,
#     Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor
@kernel("_scaled_grouped_mm")
def scaled_grouped_mm(
    self, mat2, scale_a, scale_b, offs=None, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    if bias is not None or scale_result is not None:
        raise RuntimeError("_scaled_grouped_mm: bias and scale_result are not supported, leave them out")
    by_blocks = scale_a.dtype.name == "float8_e8m0fnu"
    grouped = _grouped_by_blocks if by_blocks else _grouped_by_rows
    return grouped(self, mat2, scale_a, scale_b, offs, out_dtype or jnp.bfloat16)


# aten::_scaled_grouped_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] swizzle_a,
#     Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, Tensor? offs=None, Tensor? bias=None,
#     ScalarType? out_dtype=None, int[] contraction_dim=[], bool use_fast_accum=False) -> Tensor
@kernel("_scaled_grouped_mm_v2")
def scaled_grouped_mm_v2(
    self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, offs=None, bias=None, out_dtype=None,
    contraction_dim=(), use_fast_accum=False
):  # fmt: skip
    _check_recipes(recipe_a, recipe_b)
    recipe = recipe_a[0] if len(recipe_a) == 1 else None
    swizzles = {*swizzle_a, *swizzle_b}
    if recipe not in (_ROW, _BLOCK_32) or recipe_a != recipe_b:
        raise ValueError(f"_scaled_grouped_mm_v2: scales are of rows or of blocks of 32, got recipes {list(recipe_a)}")
    _check(recipe == _ROW or swizzles == {_SWIZZLED}, "_scaled_grouped_mm_v2: scales of blocks must be swizzled")
    _check(recipe != _ROW or _SWIZZLED not in swizzles, "_scaled_grouped_mm_v2: scales of rows have no swizzle")
    return scaled_grouped_mm(self, mat2, scale_a[0], scale_b[0], offs, bias, None, out_dtype)
