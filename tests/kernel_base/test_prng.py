"""The generator of random kernels: JAX's numbers, computed otherwise on a CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.kernel_base import prng
from jaten_ops.xla.x64 import Enabled

from ..harness.crossings import crossed

_SEEDS = [0, 1, -1, 2**40 + 3]


def _keys(seed: int) -> tuple[jax.Array, jax.Array]:
    return jax.random.key(seed, impl=prng.IMPL), jax.random.key(seed, impl="threefry2x32")


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("seed", "width", "shape"), crossed(_SEEDS, [8, 16, 32, 64], [(), (0,), (1,), (7,), (3, 0, 2), (5, 4, 3)])
)
def test_bits_are_those_of_jax(seed: int, width: int, shape: tuple[int, ...]) -> None:
    with Enabled():
        ours, theirs = _keys(seed)
        dtype: Any = f"uint{width}"
        np.testing.assert_array_equal(jax.random.bits(ours, shape, dtype), jax.random.bits(theirs, shape, dtype))


def _derived(key: jax.Array) -> list[jax.Array]:
    one, two = jax.random.split(key)
    folded = jax.random.fold_in(key, 12345)
    return [jax.random.key_data(k) for k in (key, one, two, folded)] + [
        jax.random.normal(folded, (11,)),
        jax.random.permutation(one, 17),
        jax.vmap(lambda k: jax.random.uniform(k, (3,)))(jax.random.split(two, 4)),
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", _SEEDS)
def test_what_is_made_of_them_is_too(seed: int) -> None:
    with Enabled():
        for ours, theirs in zip(*map(_derived, _keys(seed)), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_no_loop_is_left_on_a_cpu() -> None:
    """If this fails, JAX computes bits on a CPU in another way, which may be worth another look."""

    def program(impl: Any) -> str:
        draw = jax.jit(lambda seed: jax.random.bits(jax.random.key(seed, impl=impl), (64,)))
        return draw.lower(jnp.uint32(1)).compile().as_text()

    assert "while(" in program("threefry2x32")
    assert "while(" not in program(prng.IMPL)
