"""Folded sums: the values of plain ones, with no less digits, and which shapes are folded."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaten_ops.cpu.folding import fold_of, folded_sum

_RNG = np.random.default_rng(0)

# shapes and summed dimensions: rows in stretches, with some left over, and too short for that; images; columns, few of
# them, and of several dimensions; everything; dimensions that are no neighbours; more terms than a product may add
_CASES = [
    *[((6, 512), (1,)), ((6, 131), (1,)), ((6, 66), (1,)), ((6, 20), (1,)), ((2, 3, 14, 14), (2, 3))],
    *[((64, 20), (0,)), ((2, 35, 20), (1,)), ((3, 20), (0,)), ((4, 6, 20), (0, 1)), ((2, 4, 6, 20), (1, 2))],
    *[
        ((3, 4, 160), (0, 1, 2)),
        ((4, 5, 12, 12), (0, 2, 3)),
        ((20000,), (0,)),
        ((9000, 16), (0,)),
        ((2, 9000, 16), (1,)),
    ],
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axes"), _CASES, ids=str)
def test_values(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    x = _RNG.standard_normal(shape)
    with jax.enable_x64(True):
        x = x.astype(dtype)
        found = np.asarray(jax.jit(folded_sum, static_argnums=1)(x, axes))
    wide, terms = x.astype("float64"), x.size / found.size
    # as many roundings as there are additions, a random walk
    close = np.finfo(dtype).eps * np.sqrt(terms) * np.log2(terms)
    np.testing.assert_allclose(found, wide.sum(axes, keepdims=True), rtol=1e-6, atol=close)


@pytest.mark.parametrize(
    ("shape", "axes"), [((6, 7), (1,)), ((512, 8), (0,)), ((1, 64), (0,)), ((8, 8), ()), ((512, 4, 8), (0, 1))], ids=str
)
def test_what_is_not_folded(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert fold_of(shape, axes) is None
    x = _RNG.standard_normal(shape, dtype="float32")
    # sums of float32 in another order
    np.testing.assert_allclose(folded_sum(x, axes), x.sum(axes, keepdims=True), rtol=1e-5, atol=1e-5)


def test_what_is_not_finite() -> None:
    x = np.ones((4, 512), np.float32)
    x[1, 3], x[2, 100], x[3, 5], x[3, 9] = np.inf, np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(folded_sum(x, (1,)), [[512], [np.inf], [np.nan], [np.nan]])


def test_derivatives_and_maps() -> None:
    x = _RNG.standard_normal((3, 5, 256), dtype="float32")

    def fn(x: jax.Array) -> jax.Array:
        return folded_sum(x * x, (1,))

    found = jax.vmap(jax.grad(lambda x: fn(x).sum()))(x)
    np.testing.assert_allclose(found, 2 * x)
    np.testing.assert_allclose(jax.vmap(fn)(x), (x * x).sum(2, keepdims=True), rtol=1e-5)  # another order
