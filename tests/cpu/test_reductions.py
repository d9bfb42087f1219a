"""Sums of squares in one pass: the digits of two passes in double precision, and their derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.cpu.reductions import in_one_pass, wide_squares
from jaten_ops.xla.x64 import Enabled

# shapes and reduced dimensions: rows that are shorter than the sums side by side, whole blocks, blocks and a rest
CASES = [
    *[((5, 30), (1,)), ((3, 256), (1,)), ((2, 300), (1,)), ((2, 3, 70, 61), (2, 3)), ((3, 9000), (1,)), ((7, 2), (1,))],
    *[((4, 50), (0,)), ((6, 5, 4), (0, 2)), ((3, 1), (1,))],
]


def _two_passes(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(np.float64)
    mean = wide.mean(axes, keepdims=True)
    return jnp.square(wide - mean).sum(axes, keepdims=True), mean


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mean", [0.0, 1e6])
@pytest.mark.parametrize(("shape", "axes"), CASES)
def test_values(shape: tuple[int, ...], axes: tuple[int, ...], mean: float) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) + mean).astype(np.float32)
    assert in_one_pass(x, axes)
    with Enabled():
        for found, expected in zip(jax.jit(wide_squares, static_argnums=1)(x, axes), _two_passes(x, axes), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_equal_elements_have_no_spread_and_what_is_not_finite_is_nan() -> None:
    x = np.full((4, 300), 0.1, np.float32)
    x[1, 0], x[2, 200], x[3, 7] = np.inf, -np.inf, np.nan
    with Enabled():
        squares = np.asarray(wide_squares(x, (1,))[0])
    assert squares[0] == 0 and np.isnan(squares[1:]).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "axes"), [((3, 300), (1,)), ((6, 5, 4), (0, 2))])
def test_derivatives(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0).standard_normal
    x, dx = draw(shape).astype(np.float32), draw(shape).astype(np.float32)
    with Enabled():

        def derivatives(of: object) -> list[jax.Array]:
            def total(x: jax.Array) -> jax.Array:
                squares, mean = of(x, axes)  # type: ignore[operator]  # either function
                return jnp.sum(squares * mean + squares)

            gradient = jax.grad(total)
            return [gradient(x), *jax.jvp(gradient, (x,), (dx,))]

        for found, expected in zip(derivatives(wide_squares), derivatives(_two_passes), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_arrays_that_are_left_to_two_passes() -> None:
    f32 = np.zeros((40, 50), np.float32)
    assert not in_one_pass(f32.astype(np.float64), (1,)) and not in_one_pass(f32.astype(np.complex64), (1,))
    assert not in_one_pass(f32, (0, 1)) and not in_one_pass(f32, (0,)) and not in_one_pass(f32[:, :0], (1,))
