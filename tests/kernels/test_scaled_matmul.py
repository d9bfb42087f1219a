"""Products of float8 matrices: against ATen where its CPU kernel has the scales, else against the scaled operands."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from jaten_ops.schema import FUNCTIONAL

OPS, ATEN = torch.ops.jaten, torch.ops.aten
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
TENSOR, ROW, BLOCK_32, BLOCK_128, SQUARE_128 = 0, 1, 3, 4, 5


def _matrix(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(E4M3)


def _scale(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    exponents = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed))
    return (2.0**exponents).to(dtype)


def _swizzled(scale: torch.Tensor) -> torch.Tensor:
    """(rows, columns) as tiles of 128 x 4, one after the other, each stored by row % 32, row // 32 and column."""
    rows, columns = -(-scale.shape[0] // 128) * 128, -(-scale.shape[1] // 4) * 4
    padded = torch.ones(rows, columns)
    padded[: scale.shape[0], : scale.shape[1]] = scale.float()
    flat = [
        padded[128 * i + 32 * k + r, 4 * j + c]
        for i in range(rows // 128)
        for j in range(columns // 4)
        for r in range(32)
        for k in range(4)
        for c in range(4)
    ]
    return torch.stack(flat).to(scale.dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", [TENSOR, ROW])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, None], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_as_aten(recipe: int, out_dtype: Any, with_bias: bool) -> None:
    a, b = _matrix(4, 8, seed=0), _matrix(8, 6, seed=1)
    scales = ([_scale(4, 1, seed=2)], [_scale(1, 6, seed=3)]) if recipe else ([_scale(1, seed=2)], [_scale(1, seed=3)])
    bias = torch.arange(6.0).to(out_dtype or torch.bfloat16) if with_bias else None
    args = (a, b, scales[0], [recipe], [0], scales[1], [recipe], [0], bias, out_dtype)
    expected, got = ATEN._scaled_mm_v2(*args), OPS._scaled_mm_v2(*args)
    assert got.dtype == expected.dtype
    if out_dtype is None:
        got, expected = got.float(), expected.float()
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("recipes", "error"), [((ROW, TENSOR), ValueError), ((BLOCK_32, ROW), ValueError), ((TENSOR, TENSOR), ValueError)]
)
def test_bad_scales(recipes: tuple[int, int], error: type[Exception]) -> None:
    a, b, scale = _matrix(4, 8, seed=0), _matrix(8, 6, seed=1), _scale(2, 2, seed=2)
    args = (a, b, [scale], [recipes[0]], [0], [scale], [recipes[1]], [0], None, torch.float32)
    for ops in (ATEN, OPS):
        with pytest.raises(error):
            ops._scaled_mm_v2(*args)


@pytest.mark.parametrize(
    ("recipe_a", "recipe_b"), [(BLOCK_128, BLOCK_128), (BLOCK_128, SQUARE_128), (SQUARE_128, BLOCK_128)]
)
def test_blocks_of_128(recipe_a: int, recipe_b: int) -> None:
    rows, depth, columns = 128, 256, 256
    a, b = _matrix(rows, depth, seed=0), _matrix(depth, columns, seed=1)
    scales, factors = [], []
    for recipe, size, seed in ((recipe_a, rows, 2), (recipe_b, columns, 3)):
        scale = _scale(size if recipe == BLOCK_128 else size // 128, 2, seed=seed)
        factors.append(scale.repeat_interleave(size // scale.shape[0], 0).repeat_interleave(128, 1))
        # those of squares are stored by depth first, padded to four
        scales.append(scale if recipe == BLOCK_128 else torch.nn.functional.pad(scale.T, (0, 0, 0, 2)))
    got = OPS._scaled_mm_v2(a, b, [scales[0]], [recipe_a], [0], [scales[1]], [recipe_b], [0], None, torch.float32)
    torch.testing.assert_close(got, (a.float() * factors[0]) @ (b.float() * factors[1].T), rtol=1e-5, atol=1e-3)


def test_swizzled_blocks_of_32() -> None:
    a, b = _matrix(130, 160, seed=0), _matrix(160, 8, seed=1)
    scales = [_scale(n, 5, seed=n, dtype=E8M0) for n in (130, 8)]
    args = [[[_swizzled(s)], [BLOCK_32], [1]] for s in scales]
    got = OPS._scaled_mm_v2(a, b, *args[0], *args[1], None, torch.float32)
    factors = [s.float().repeat_interleave(32, 1) for s in scales]
    torch.testing.assert_close(got, (a.float() * factors[0]) @ (b.float() * factors[1].T), rtol=1e-5, atol=1e-3)


@pytest.mark.skipif("_scaled_addmm" not in FUNCTIONAL, reason="a newer torch has it")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_added_to_a_matrix(dtype: torch.dtype) -> None:
    """The sum is rounded once. ATen has no kernel of this on the CPU."""
    a, b = _matrix(4, 8, seed=0), _matrix(8, 6, seed=1)
    scales = ([_scale(4, 1, seed=2)], [ROW], [0], [_scale(1, 6, seed=3)], [ROW], [0])
    total = torch.arange(24.0).reshape(4, 6).to(dtype)
    product = (a.float() * scales[0][0]) @ (b.float() * scales[3][0])
    expected = (0.5 * total.float() + 2 * product).to(dtype)
    got = OPS._scaled_addmm(total, a, b, *scales, [1, 0], beta=0.5, alpha=2)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected)
    ignored = OPS._scaled_addmm(total * torch.nan, a, b, *scales, beta=0)
    torch.testing.assert_close(ignored, product.to(dtype))
    assert OPS._scaled_addmm_(total, a, b, *scales, beta=0.5, alpha=2) is total and torch.equal(total, got)
    for wrong in ((total[:3], a), (total, a[:, :4]), (total.double(), a), (total[0], a)):
        with pytest.raises((RuntimeError, ValueError)):
            OPS._scaled_addmm(*wrong, b, *scales)


GROUPS = torch.tensor([1, 3, 6], dtype=torch.int32)
SLICES = [slice(0, 1), slice(1, 3), slice(3, 6)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["2d3d", "3d2d", "3d3d", "2d2d"])
def test_groups_scaled_by_rows(layout: str) -> None:
    """Each group is a product by itself."""
    a_is_2d, b_is_2d = layout[0] == "2", layout[2] == "2"
    both = a_is_2d and b_is_2d
    a = _matrix(4, 6, seed=0) if both else _matrix(6, 5, seed=0) if a_is_2d else _matrix(3, 4, 5, seed=0)
    b = _matrix(6, 7, seed=1) if both else _matrix(5, 6, seed=1) if b_is_2d else _matrix(3, 5, 7, seed=1)
    scale_a = _scale(12 if both else 6, seed=2) if a_is_2d else _scale(3, 4, seed=2)
    scale_b = _scale(21 if both else 6, seed=3) if b_is_2d else _scale(3, 7, seed=3)
    offs = None if layout == "3d3d" else GROUPS
    expected = []
    for g, part in enumerate(SLICES):
        left = a[:, part] if both else a[part] if a_is_2d else a[g]
        right = b[part] if both else b[:, part] if b_is_2d else b[g]
        of_a = scale_a[4 * g : 4 * g + 4] if both else scale_a[part] if a_is_2d else scale_a[g]
        of_b = scale_b[7 * g : 7 * g + 7] if both else scale_b[part] if b_is_2d else scale_b[g]
        expected.append((left.float() * of_a[:, None]) @ (right.float() * of_b))
    if a_is_2d == b_is_2d:
        whole = torch.stack(expected)
    else:
        whole = torch.cat(expected, 0 if a_is_2d else 1)
    got = OPS._scaled_grouped_mm(a, b, scale_a, scale_b, offs)
    torch.testing.assert_close(got, whole.bfloat16())
    again = OPS._scaled_grouped_mm_v2(a, b, [scale_a], [ROW], [0], [scale_b], [ROW], [0], offs)
    torch.testing.assert_close(again, got)


def test_groups_scaled_by_blocks() -> None:
    """The scales of each group begin a tile of 128 rows."""
    a, b = _matrix(6, 64, seed=0), _matrix(3, 64, 8, seed=1)
    of_a, of_b = _scale(6, 2, seed=2, dtype=E8M0), _scale(3, 8, 2, seed=3, dtype=E8M0)
    expected = torch.cat(
        [
            (a[part].float() * of_a[part].float().repeat_interleave(32, 1))
            @ (b[g].float() * of_b[g].float().repeat_interleave(32, 1).T)
            for g, part in enumerate(SLICES)
        ]
    )
    scale_a = torch.cat([_swizzled(of_a[part]) for part in SLICES]).reshape(-1, 4)
    scale_b = torch.stack([_swizzled(s) for s in of_b])
    got = OPS._scaled_grouped_mm(a, b, scale_a, scale_b, GROUPS)
    torch.testing.assert_close(got, expected.bfloat16())
