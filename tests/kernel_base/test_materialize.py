"""Values that are stored before they are used: computed once, with the same values and derivatives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaten_ops.kernel_base.materialize import stored


def _reshaped(x: jax.Array) -> jax.Array:
    """The operand of what is stored as a shuffle of channels makes it."""
    return lax.reshape(jnp.concatenate([jnp.maximum(x, 0), x], 1), (2, 2, 4, 8))


def _turned(x: jax.Array) -> jax.Array:
    return lax.transpose(x, (0, 2, 1, 3))


def _shuffled(x: jax.Array) -> jax.Array:
    return stored(_turned, _reshaped(x))


def _plain(x: jax.Array) -> jax.Array:
    return _turned(_reshaped(x))


def _gradient(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return jax.grad(lambda x: jnp.sum(jnp.square(fn(x))))


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, _gradient])
@pytest.mark.parametrize("images", [2, 0])
def test_values(transform: Callable[[Callable[[jax.Array], jax.Array]], Callable[..., jax.Array]], images: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 8), np.float32)[:images]
    each = transform if transform is jax.vmap else lambda fn: jax.vmap(transform(fn))
    np.testing.assert_array_equal(each(_shuffled)(x), each(_plain)(x))


def test_a_branch_is_left_and_its_operand_is_computed_once() -> None:
    text = jax.jit(_shuffled).lower(np.ones((2, 4, 8), np.float32)).compile().as_text()
    assert (text.count(" conditional("), text.count(" concatenate(")) == (1, 1)
