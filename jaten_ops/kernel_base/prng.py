"""The generator of all random kernels: the numbers of JAX's Threefry, computed in another way on a CPU.

On a CPU JAX's own is a loop over the rounds, each of which goes through memory. Here all rounds are in one loop over
the elements, which takes less than half the time and compiles faster.
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl
from jax.extend.random import threefry_prng_impl as _jax

from ..masking.masked_run import MaskedStep, masked_rule
from ..masking.masked_values import NotMasked
from .materialize import stored
from .platform import by_platform

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_MOST_COUNTED = 2**32  # elements whose number has no high word

Words = tuple[jax.Array, jax.Array]


def _rotated(x: jax.Array, by: int) -> jax.Array:
    return lax.shift_left(x, np.uint32(by)) | lax.shift_right_logical(x, np.uint32(32 - by))


def threefry(key: jax.Array, high: jax.Array, low: jax.Array) -> Words:
    """Threefry 2x32 with 20 rounds: two random words for each two words of a counter, all uint32.

    Args:
        key: (2,)
        high, low: of one shape, which the results have, too.
    """
    one, two = (lax.broadcast(lax.index_in_dim(key, i, keepdims=False), low.shape) for i in range(2))
    keys = (one, two, one ^ two ^ _PARITY)
    a, b = high + keys[0], low + keys[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            a = a + b
            b = a ^ _rotated(b, by)
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def _bits_at(key: jax.Array, bit_width: int, counted: jax.Array) -> jax.Array:
    """The bits of the elements with these numbers, uint32, counted over all dimensions."""
    high, low = threefry(key, lax.full_like(counted, 0), counted)
    if bit_width == 64:
        wide = [lax.convert_element_type(word, np.uint64) for word in (high, low)]
        return lax.shift_left(wide[0], np.uint64(32)) | wide[1]
    return lax.convert_element_type(high ^ low, f"uint{bit_width}")


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    count = math.prod(shape)

    def drawn(key: jax.Array) -> jax.Array:
        return _bits_at(key, bit_width, lax.iota(np.dtype("uint32"), count))

    def default(key: jax.Array) -> jax.Array:
        return _jax.random_bits(key, bit_width, shape)

    if not isinstance(count, int) or count >= _MOST_COUNTED:  # or a size that an exported program leaves open
        return default(key)
    return by_platform(key, cpu=lambda key: lax.reshape(stored(drawn, key), shape), default=default)


def _fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    high, low = _jax.seed(data)
    return lax.concatenate([lax.reshape(word, (1,)) for word in threefry(key, high, low)], 0)


@masked_rule("random_bits")
def _masked_bits(step: MaskedStep) -> Sequence[Any]:
    """The bits of the elements that there are, as if there were no others."""
    (key,), shape = step.operands, step.shape()
    larger = step.sizes.shape(shape)
    if key.shape or key.dtype.name != jax.random.key(0, impl=IMPL).dtype.name or math.prod(larger) >= _MOST_COUNTED:
        raise NotMasked("draws random numbers in a way that is not known")
    counted, stride = jnp.zeros(larger, np.uint32), np.uint32(1)
    for d in reversed(range(len(shape))):
        counted += lax.broadcasted_iota(np.uint32, larger, d) * stride
        stride = stride * lax.convert_element_type(step.sizes.given(shape[d]), np.uint32)
    return [step.of(_bits_at(jax.random.key_data(key), step.params["bit_width"], counted))]


IMPL: Any = define_prng_impl(
    key_shape=(2,), seed=_jax.seed, split=_jax.split, random_bits=_random_bits, fold_in=_fold_in,
    name="jaten_threefry2x32", tag="jaten",
)  # fmt: skip
"""The PRNG implementation, as `jax.random.key(seed, impl=...)` takes it."""
