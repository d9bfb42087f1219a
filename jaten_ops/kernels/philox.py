"""Random numbers as a function of a key: Philox-4x32-10, whose keys are pairs (seed, offset) of uint64.

The numbers are those of ATen, which has these for CUDA only: aten/src/ATen/cuda/StatelessPhilox4x32.cuh. The cipher is
of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, compute_type

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
# of integers drawn from 32 bits, but for powers of two: the remainder would make some of them too likely
_MOST_OF_32_BITS = 2**28
# bits of the significand of each dtype that are drawn
_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The low and the high 32 bits of uint64."""
    return cast(x, "uint32"), cast(x >> np.uint64(32), "uint32")


def _join(low: jax.Array, high: jax.Array) -> jax.Array:
    return cast(low, "uint64") | (cast(high, "uint64") << np.uint64(32))


def _philox(seed: jax.Array, offset: jax.Array) -> tuple[jax.Array, ...]:
    """Four uint32 for each pair of seed and offset."""
    key = _halves(seed)
    zero = jnp.zeros(offset.shape, np.uint32)
    counter = (*_halves(offset), zero, zero)
    for _ in range(_ROUNDS):
        (low0, high0), (low1, high1) = (
            _halves(cast(c, "uint64") * m) for c, m in zip(counter[::2], _MULTIPLIERS, strict=True)
        )
        counter = (high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0)
        key = (key[0] + _WEYL[0], key[1] + _WEYL[1])
    return counter


def _derive(key: jax.Array, step: jax.Array) -> jax.Array:
    """The keys that `step` makes of keys (*, 2); it broadcasts to them."""
    a, b, c, d = _philox(*jnp.broadcast_arrays(key[..., 0], key[..., 1] + step))
    return jnp.stack([_join(a, b), _join(c, d)], -1)


# aten::_philox_key_split(Tensor key, int num_splits) -> Tensor
@kernel("_philox_key_split")
def philox_key_split(key, num_splits):
    steps = lax.iota(np.uint64, num_splits).reshape(num_splits, *[1] * (key.ndim - 1))
    return _derive(key, steps)


# aten::_philox_key_fold_in(Tensor key, int data) -> Tensor
@kernel("_philox_key_fold_in")
def philox_key_fold_in(key, data):
    return _derive(key, np.uint64(data % 2**64))


# aten::_philox_key_fold_in.Tensor(Tensor key, Tensor data) -> Tensor
@kernel("_philox_key_fold_in.Tensor")
def philox_key_fold_in_of_tensor(key, data):
    return _derive(key, data.reshape(()))


def _draws(x: jax.Array, key: jax.Array, at_once: int) -> tuple[jax.Array, ...]:
    """Four uint32 for each `at_once` elements of `x`, in the order (keys, groups).

    A key of more than one dimension has one pair for each index of the leading dimensions of `x`, and where it has
    size 1 in the last ones, the elements there share a key.
    """
    shared = x.ndim if key.ndim == 1 else 0
    while shared < key.ndim - 1 and key.shape[key.ndim - 2 - shared] == 1:
        shared += 1
    lead = x.shape[: x.ndim - shared]
    groups = -(-math.prod(x.shape[x.ndim - shared :]) // at_once)
    pairs = key.reshape(2) if key.ndim == 1 else key.reshape(*key.shape[: len(lead)], 2)
    pairs = jnp.broadcast_to(pairs, (*lead, 2)).reshape(-1, 1, 2)
    offset = pairs[..., 1] + lax.iota(np.uint64, groups)
    return _philox(jnp.broadcast_to(pairs[..., 0], offset.shape), offset)


def _arranged(values: list[jax.Array], x: jax.Array) -> jax.Array:
    """The values of all groups in the shape of `x`, without those beyond the last element of each key."""
    stacked = jnp.stack(values, -1)
    flat = stacked.reshape(stacked.shape[0], -1)
    return flat[:, : x.size // max(stacked.shape[0], 1)].reshape(x.shape)


# aten::_philox_uniform(Tensor self, Tensor key, float low=0., float high=1.) -> Tensor
@kernel("_philox_uniform", static=("low", "high"))
def philox_uniform(self, key, low=0.0, high=1.0):
    dtype, double = self.dtype, self.dtype == np.float64
    if not self.size:
        return self
    digits, wide = _DIGITS[dtype.name], compute_type(dtype)
    drawn = _draws(self, key, 2 if double else 4)
    bits = [_join(drawn[1], drawn[0]), _join(drawn[3], drawn[2])] if double else list(drawn)
    whole = [cast(b & np.array(2**digits - 1, b.dtype), wide) * np.array(2.0**-digits, wide) for b in bits]
    low, high = np.asarray(low, dtype), np.asarray(high, dtype)
    return cast(_arranged(whole, self) * (high - low).astype(wide) + low.astype(wide), dtype)


def _unit(high: jax.Array, low: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """A number on (0, 1] from 32 bits, or from 64 where `low` is given."""
    step = 2.0**-32
    if low is None:
        return cast(high, dtype) * np.array(step, dtype) + np.array(step / 2, dtype)
    fine = cast(low, dtype) * np.array(step * step, dtype) + np.array(step * step / 2, dtype)
    return cast(high, dtype) * np.array(step, dtype) + fine


# aten::_philox_normal(Tensor self, Tensor key, float mean=0., float std=1.) -> Tensor
@kernel("_philox_normal")
def philox_normal(self, key, mean=0.0, std=1.0):
    """Normal numbers by the Box-Muller transform."""
    wide, double = compute_type(self.dtype), self.dtype == np.float64
    if not self.size:
        return self
    a, b, c, d = _draws(self, key, 2 if double else 4)
    sources = [((a, b), (c, d))] if double else [((a, None), (b, None)), ((c, None), (d, None))]
    values = []
    for first, second in sources:
        radius = jnp.sqrt(-2 * jnp.log(_unit(*first, wide)))
        angle = np.array(2 * math.pi, wide) * _unit(*second, wide)
        values += [radius * jnp.cos(angle), radius * jnp.sin(angle)]
    return cast(_arranged(values, self) * cast(std, wide) + cast(mean, wide), self.dtype)


def _range_of(dtype: np.dtype, low: int | None, high: int | None) -> tuple[int, int]:
    """The lowest integer to draw, and the number of them: modulo 2**32, or 2**64 for a dtype of 8 bytes."""
    bits = 64 if dtype.itemsize == 8 else 32
    least = int(np.iinfo(dtype).min)
    if low in (None, least) and high is None:
        return least, 0
    low = least if low is None else low
    count = ((int(np.iinfo(dtype).max) + 1 if high is None else high) - low) % 2**bits
    if not count:
        raise RuntimeError("_philox_randint_: [low, high) must be non-empty; pass high=None for the dtype's full range")
    if bits == 32 and 2**bits % count and count >= _MOST_OF_32_BITS:
        raise RuntimeError(
            f"_philox_randint_: range (high - low = {count}) does not divide 2^32 evenly and is too large for the"
            f" output dtype {dtype}. Fix: use a range that divides 2^32, or a 64-bit dtype"
        )
    return low, count


# aten::_philox_randint(Tensor self, Tensor key, int? low=None, int? high=None) -> Tensor
@kernel("_philox_randint")
def philox_randint(self, key, low=None, high=None):
    """Integers from 32 bits, or from 64 for a dtype of 8 bytes. All values of the dtype are the low bits themselves."""
    if not np.issubdtype(self.dtype, np.integer):
        raise RuntimeError(f"_philox_randint_: self must have an integer dtype, got {self.dtype}")
    low, count = _range_of(self.dtype, low, high)
    if not self.size:
        return self
    double = self.dtype.itemsize == 8
    drawn = _draws(self, key, 2 if double else 4)
    bits = [_join(drawn[1], drawn[0]), _join(drawn[3], drawn[2])] if double else list(drawn)
    if count:
        wide = np.dtype("uint64" if double else "uint32")
        least = np.array(low % 2 ** (8 * wide.itemsize), wide)
        bits = [b % np.array(count, wide) + least for b in bits]
    return cast(_arranged(bits, self), self.dtype)
