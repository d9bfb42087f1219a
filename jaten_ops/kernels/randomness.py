"""Random numbers. They have ATen's distributions, but a seed gives other numbers than torch's generators do.

Source of the ranges: aten/src/ATen/native/DistributionTemplates.h and aten/src/ATen/core/TransformationHelper.h.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.checks import require
from ..kernel_base.promotion import cast, compute_type, get_default_float, is_complex, is_float, is_integral, to_real
from .conversion import convert


def _check_inexact(dtype: np.dtype, name: str) -> None:
    if is_integral(dtype):
        raise NotImplementedError(f"{name} is not implemented for {dtype}")


def _uniform(key: jax.Array, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Uniform on [0, 1), complex numbers in both parts."""
    if is_complex(dtype):
        real, imag = jax.random.uniform(key, (2, *shape), to_real(dtype))
        return lax.complex(real, imag)
    return jax.random.uniform(key, shape, dtype)


def _open_uniform(key: jax.Array, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Uniform on (0, 1), in the dtype to compute in."""
    work = compute_type(dtype) if is_float(dtype) else np.dtype("float32")
    return jax.random.uniform(key, shape, work, minval=jnp.finfo(work).tiny)


def _normal(key: jax.Array, shape: Sequence[int], dtype: np.dtype, mean: Any = 0.0, std: Any = 1.0) -> jax.Array:
    """Normal; the two parts of a complex number share the variance."""
    _check_inexact(dtype, "normal")
    work = compute_type(dtype)
    drawn = jax.random.normal(key, shape, work)
    return cast(drawn * cast(std, work) + cast(mean, work), dtype)


# Uniform and normal


# aten::rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::rand.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("rand", "rand.generator")
def rand(size, *, dtype=None, key):
    dtype = dtype or get_default_float()
    _check_inexact(dtype, "rand")
    return _uniform(key, size, dtype)


# aten::rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
# aten::rand_like.generator(Tensor self, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("rand_like", "rand_like.generator")
def rand_like(self, *, dtype=None, key):
    return rand(self.shape, dtype=dtype or self.dtype, key=key)


# aten::uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor
@kernel("uniform")
def uniform(self, from_=0.0, to=1.0, *, key):
    _check_inexact(self.dtype, "uniform")
    require(from_ <= to, RuntimeError, "uniform_ expects to return a [from, to) range, but found from > to")
    real = to_real(self.dtype)
    largest = float(jnp.finfo(real).max)
    for name, bound in (("from", from_), ("to", to)):
        require((bound >= -largest) & (bound <= largest), RuntimeError, f"{name} is out of bounds for {real}")
    work = compute_type(real)
    shape = (2, *self.shape) if is_complex(self.dtype) else self.shape
    drawn = cast(jax.random.uniform(key, shape, real), work)
    low = cast(from_, work)
    scaled = cast(drawn * (cast(to, work) - low) + low, real)
    return lax.complex(scaled[0], scaled[1]) if is_complex(self.dtype) else scaled


# aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::randn.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("randn", "randn.generator")
def randn(size, *, dtype=None, key):
    return _normal(key, size, dtype or get_default_float())


# aten::randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
# aten::randn_like.generator(Tensor self, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("randn_like", "randn_like.generator")
def randn_like(self, *, dtype=None, key):
    return _normal(key, self.shape, dtype or self.dtype)


# aten::normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor
@kernel("normal_functional")
def normal_functional(self, mean=0.0, std=1.0, *, key):
    require(std >= 0, RuntimeError, "normal expects std >= 0.0")
    _check_inexact(self.dtype, "normal")
    return _normal(key, self.shape, self.dtype, mean, std)


# aten::normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator=None, ScalarType? dtype=None,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("normal.float_float")
def normal_float_float(mean, std, size, *, dtype=None, key):
    require(std >= 0, RuntimeError, "normal expects std >= 0.0")
    return _normal(key, size, dtype or get_default_float(), mean, std)


def _check_deviations(std: jax.Array) -> None:
    require(not is_complex(std.dtype), RuntimeError, "normal expects standard deviation to be non-complex")
    require(std >= 0, RuntimeError, "normal expects all elements of std >= 0.0")


# aten::normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor
@kernel("normal.Tensor_Tensor")
def normal_tensors(mean, std, *, key):
    _check_deviations(std)
    return _normal(key, np.broadcast_shapes(mean.shape, std.shape), mean.dtype, mean, std)


# aten::normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor
@kernel("normal.Tensor_float")
def normal_tensor_float(mean, std=1.0, *, key):
    require(std >= 0, RuntimeError, "normal expects std >= 0.0")
    return _normal(key, mean.shape, mean.dtype, mean, std)


# aten::normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor
@kernel("normal.float_Tensor")
def normal_float_tensor(mean, std, *, key):
    _check_deviations(std)
    return _normal(key, std.shape, std.dtype, mean, std)


# Integers


def are_short(low: Any, high: Any) -> Any:
    """True if integers from `low` to `high - 1` are drawn as 32 bits each."""
    return (high - low <= 2**28) & (low >= -(2**31)) & (high <= 2**31)


def integers(
    key: jax.Array, shape: Sequence[int], low: Any, count: Any, dtype: np.dtype, *, is_short: bool
) -> jax.Array:
    """So many integers from `low` on, drawn modulo their number as ATen does; `count` is None for 2**64 of them."""
    if is_short:
        drawn = jax.random.bits(key, shape, np.uint32) % lax.convert_element_type(count, np.uint32)
        return cast(lax.convert_element_type(drawn, np.int32) + lax.convert_element_type(low, np.int32), dtype)
    drawn = jax.random.bits(key, shape, np.uint64)
    drawn = drawn if count is None else drawn % lax.convert_element_type(count, np.uint64)
    return cast(lax.bitcast_convert_type(drawn, np.int64) + lax.convert_element_type(low, np.int64), dtype)


def _integers(key: jax.Array, shape: Sequence[int], low: Any, high: Any, dtype: np.dtype) -> jax.Array:
    if isinstance(low, jax.Array) or isinstance(high, jax.Array):  # in a compiled program that serves all bounds
        draw = [functools.partial(integers, key, shape, low, high - low, dtype, is_short=s) for s in (False, True)]
        return lax.cond(are_short(low, high), draw[1], draw[0])
    count, is_short = high - low, bool(are_short(low, high))
    return integers(key, shape, low, np.uint64(count) if count < 2**64 else None, dtype, is_short=is_short)


def _check_real(dtype: np.dtype) -> None:
    require(not is_complex(dtype), RuntimeError, "random_ handles only integral, floating-point and boolean types")


def _largest(dtype: np.dtype) -> int:
    """The largest n such that a dtype represents all integers up to n."""
    _check_real(dtype)
    if dtype.kind == "b":
        return 1
    return 2 ** (jnp.finfo(dtype).nmant + 1) if is_float(dtype) else np.iinfo(dtype).max


def bounds_of(dtype: np.dtype) -> tuple[float, float]:
    """The smallest and the largest number of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    info = jnp.finfo(dtype) if is_float(dtype) else np.iinfo(dtype)
    return (float(info.min), float(info.max)) if is_float(dtype) else (info.min, info.max)


def _bounded(key: jax.Array, shape: Sequence[int], low: Any, high: Any, dtype: np.dtype) -> jax.Array:
    got = "" if isinstance(low < high, jax.Array) else f", but got from={low} >= to={high}"
    require(low < high, RuntimeError, f"random_ expects 'from' to be less than 'to'{got}")
    _check_real(dtype)
    smallest, largest = bounds_of(dtype)
    require(low >= smallest, RuntimeError, f"from is out of bounds for {dtype}")
    require(high - 1 <= largest, RuntimeError, f"to - 1 is out of bounds for {dtype}")
    return _integers(key, shape, low, high, dtype)


# aten::randint(SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::randint.generator(SymInt high, SymInt[] size, *, Generator? generator, ScalarType? dtype=4, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("randint", "randint.generator")
def randint(high, size, *, dtype, key):
    return _bounded(key, size, 0, high, dtype)


# aten::randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::randint.low_generator(SymInt low, SymInt high, SymInt[] size, *, Generator? generator, ScalarType? dtype=4,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("randint.low", "randint.low_generator")
def randint_low(low, high, size, *, dtype, key):
    return _bounded(key, size, low, high, dtype)


# aten::randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
# aten::randint_like.generator(Tensor self, SymInt high, *, Generator? generator, ScalarType? dtype=None,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("randint_like", "randint_like.generator")
def randint_like(self, high, *, dtype=None, key):
    return _bounded(key, self.shape, 0, high, dtype or self.dtype)


# aten::randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
# aten::randint_like.low_generator_dtype(Tensor self, SymInt low, SymInt high, *, Generator? generator,
#     ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
#     MemoryFormat? memory_format=None) -> Tensor
@kernel("randint_like.low_dtype", "randint_like.low_generator_dtype")
def randint_like_low(self, low, high, *, dtype=None, key):
    return _bounded(key, self.shape, low, high, dtype or self.dtype)


# aten::randint_like.Tensor(Tensor self, Tensor high, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
# aten::randint_like.Tensor_generator(Tensor self, Tensor high, *, Generator? generator, ScalarType? dtype=None,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("randint_like.Tensor", "randint_like.Tensor_generator")
def randint_like_tensor(self, high, *, dtype=None, key):
    high = lax.reshape(high, ())
    dtype = dtype or self.dtype
    _check_real(dtype)
    require(high > 0, RuntimeError, "random_ expects 'from' to be less than 'to'")
    require(high - 1 <= bounds_of(dtype)[1], RuntimeError, f"to - 1 is out of bounds for {dtype}")
    drawn = jax.random.bits(key, self.shape, np.uint64) % lax.convert_element_type(high, np.uint64)
    return cast(drawn, dtype)


# aten::random(Tensor self, *, Generator? generator=None) -> Tensor
@kernel("random")
def random(self, *, key):
    limit = _largest(self.dtype)
    return _integers(key, self.shape, 0, limit + 1, self.dtype)


# aten::random.to(Tensor self, int to, *, Generator? generator=None) -> Tensor
@kernel("random.to")
def random_to(self, to, *, key):
    return _bounded(key, self.shape, 0, to, self.dtype)


# aten::random.from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor
@kernel("random.from")
def random_from(self, from_, to, *, key):
    return _bounded(key, self.shape, from_, _largest(self.dtype) + 1 if to is None else to, self.dtype)


# aten::randperm(SymInt n, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::randperm.generator(SymInt n, *, Generator? generator, ScalarType? dtype=4, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("randperm", "randperm.generator")
def randperm(n, *, dtype, key):
    # ATen lets a bfloat16 round
    require(dtype == jnp.bfloat16 or n <= _largest(dtype) + 1, RuntimeError, f"n is too large for {dtype}")
    # with keys of this many bits, ties are too rare for any use of the result to show: one sort is enough
    keys = jax.random.bits(key, (n,), np.uint64)
    if n > 2**17:
        return lax.sort_key_val(keys, lax.iota(dtype, n))[1]
    low = np.uint64(2**17 - 1)  # holds the number itself: XLA sorts integers alone several times as fast as pairs
    return cast(lax.sort((keys & ~low) | lax.iota(np.uint64, n)) & low, dtype)


# Other distributions


# aten::exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor
@kernel("exponential")
def exponential(self, lambd=1.0, *, key):
    require(is_float(self.dtype), RuntimeError, f"exponential_ needs a floating point dtype, but got {self.dtype}")
    require(lambd > 0, RuntimeError, "exponential_ expects lambda > 0.0")
    u = _open_uniform(key, self.shape, self.dtype)
    return cast(-jnp.log(u) / cast(lambd, u.dtype), self.dtype)


# aten::geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor
@kernel("geometric")
def geometric(self, p, *, key):
    require((p > 0) & (p < 1), RuntimeError, "geometric_ expects p to be in (0, 1)")
    u = _open_uniform(key, self.shape, self.dtype)
    return convert(jnp.ceil(jnp.log(u) / jnp.log1p(-cast(p, u.dtype))), self.dtype)


# aten::cauchy(Tensor self, float median=0., float sigma=1., *, Generator? generator=None) -> Tensor
@kernel("cauchy")
def cauchy(self, median=0.0, sigma=1.0, *, key):
    require(is_float(self.dtype), RuntimeError, f"cauchy_ needs a floating point dtype, but got {self.dtype}")
    require(sigma > 0, RuntimeError, "cauchy_ expects sigma > 0.0")
    u = _open_uniform(key, self.shape, self.dtype)
    deviation = jnp.tan(math.pi * (u - np.array(0.5, u.dtype)))
    return cast(cast(median, u.dtype) + cast(sigma, u.dtype) * deviation, self.dtype)


# aten::log_normal(Tensor self, float mean=1., float std=2., *, Generator? generator=None) -> Tensor
@kernel("log_normal")
def log_normal(self, mean=1.0, std=2.0, *, key):
    require(std > 0, RuntimeError, "log_normal_ expects std > 0.0")
    _check_inexact(self.dtype, "log_normal")
    return cast(jnp.exp(_normal(key, self.shape, compute_type(self.dtype), mean, std)), self.dtype)


# aten::poisson(Tensor self, Generator? generator=None) -> Tensor
@kernel("poisson")
def poisson(self, *, key):
    _check_inexact(self.dtype, "poisson")
    require(~(self < 0), RuntimeError, "invalid Poisson rate, expected rate to be non-negative")
    key = jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")  # JAX accepts no other here
    return cast(jax.random.poisson(key, cast(self, compute_type(self.dtype)), dtype=np.int64), self.dtype)


# aten::binomial(Tensor count, Tensor prob, Generator? generator=None) -> Tensor
@kernel("binomial")
def binomial(count, prob, *, key):
    dtype = compute_type(count.dtype)
    n, p = jnp.broadcast_arrays(cast(count, dtype), cast(prob, dtype))
    return cast(jax.random.binomial(key, jnp.maximum(n, 0), jnp.clip(p, 0, 1), dtype=dtype), count.dtype)


# aten::multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor
@kernel("multinomial")
def multinomial(self, num_samples, replacement=False, *, key):
    require(is_float(self.dtype), RuntimeError, "multinomial only supports floating-point dtypes for input")
    categories = self.shape[-1]
    require(num_samples > 0, RuntimeError, "cannot sample n_sample <= 0 samples")
    too_many = "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
    require(replacement or num_samples <= categories, RuntimeError, too_many)
    require(categories <= 2**24, RuntimeError, "number of categories cannot exceed 2^24")
    p = cast(self, compute_type(self.dtype))
    message = "probability tensor contains either `inf`, `nan` or element < 0"
    require(jnp.isfinite(p) & (p >= 0), RuntimeError, message)
    cumulative = jnp.cumsum(p, -1)
    total = cumulative[..., -1:] if categories else jnp.zeros((*self.shape[:-1], 1), p.dtype)
    require(total > 0, RuntimeError, "invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement:
        # the indices of the largest p / exponential are a sample without replacement
        race = p / -jnp.log(_open_uniform(key, p.shape, p.dtype))
        return lax.convert_element_type(lax.top_k(race, num_samples)[1], np.int64)
    target = jax.random.uniform(key, (*self.shape[:-1], num_samples), p.dtype) * total
    target = jnp.minimum(target, jnp.nextafter(total, np.zeros((), p.dtype)))

    def find(cumulative: jax.Array, target: jax.Array) -> jax.Array:
        return jnp.searchsorted(cumulative, target, side="right")

    found = jax.vmap(find)(cumulative, target) if self.ndim == 2 else find(cumulative, target)
    return lax.convert_element_type(found, np.int64)


# aten::_standard_gamma(Tensor self, Generator? generator=None) -> Tensor
@kernel("_standard_gamma")
def standard_gamma(self, *, key):
    _check_inexact(self.dtype, "_standard_gamma")
    dtype = compute_type(self.dtype)
    drawn = jax.random.gamma(key, jnp.maximum(cast(self, dtype), 0), dtype=dtype)
    return cast(jnp.maximum(drawn, jnp.finfo(dtype).tiny), self.dtype)


# aten::_sample_dirichlet(Tensor self, Generator? generator=None) -> Tensor
@kernel("_sample_dirichlet")
def sample_dirichlet(self, *, key):
    _check_inexact(self.dtype, "_sample_dirichlet")
    dtype = compute_type(self.dtype)
    drawn = jax.nn.softmax(jax.random.loggamma(key, cast(self, dtype), dtype=dtype), axis=-1)
    info = jnp.finfo(dtype)
    return cast(jnp.clip(drawn, info.tiny, 1 - info.epsneg), self.dtype)
