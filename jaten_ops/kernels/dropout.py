"""Bernoulli samples, and dropout made of them.

Source of the errors: aten/src/ATen/native/DistributionTemplates.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.checks import require
from ..kernel_base.promotion import cast, compute_type, float_type, is_float, is_integral


def _chance(key: jax.Array, shape: Sequence[int], p: jax.Array) -> jax.Array:
    """True with probability `p`, which broadcasts to the shape: as random bits below a threshold."""
    threshold = lax.convert_element_type(jnp.round(p * np.array(2**31, p.dtype)), np.uint32)
    drawn = lax.shift_right_logical(jax.random.bits(key, shape, np.uint32), np.uint32(1))
    return drawn < threshold


def _chance_of_number(key: jax.Array, shape: Sequence[int], p: Any) -> jax.Array:
    require((p >= 0) & (p <= 1), RuntimeError, "bernoulli_ expects p to be in [0, 1]")
    return _chance(key, shape, cast(p, np.float32))


def _chance_of_tensor(key: jax.Array, shape: Sequence[int], p: jax.Array) -> jax.Array:
    if not is_float(p.dtype):
        raise NotImplementedError(f"bernoulli is not implemented for probabilities of {p.dtype}")
    require((p >= 0) & (p <= 1), RuntimeError, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return _chance(key, shape, cast(p, compute_type(p.dtype)))


# aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor
@kernel("bernoulli")
def bernoulli(self, *, key):
    return cast(_chance_of_tensor(key, self.shape, self), self.dtype)


# aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor
@kernel("bernoulli.p")
def bernoulli_p(self, p, *, key):
    return cast(_chance_of_number(key, self.shape, p), self.dtype)


# aten::bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor
@kernel("bernoulli.Tensor")
def bernoulli_tensor(self, p, *, key):
    return cast(_chance_of_tensor(key, self.shape, p), self.dtype)


# aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
@kernel("native_dropout")
def native_dropout(input, p, train, *, key):
    if train is False:
        return input, lax.full(input.shape, True)
    require(
        not is_integral(input.dtype),
        RuntimeError,
        f"result type Float can't be cast to the desired output type {input.dtype}",
    )
    kept = _chance_of_number(key, input.shape, 1 - p)
    # nothing is kept at p = 1, and nothing is divided by 0
    scale = jnp.where(p == 1, 0.0, 1 / (1 - p)) if isinstance(p, jax.Array) else 0.0 if p == 1 else 1 / (1 - p)
    return native_dropout_backward(input, kept, scale), kept


# aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor
@kernel("native_dropout_backward")
def native_dropout_backward(grad_output, mask, scale):
    # the mask is multiplied, not selected by, as in ATen: nan and inf stay nan where they are dropped
    result = float_type(grad_output)
    dtype = compute_type(result)
    return cast(cast(grad_output, dtype) * cast(mask, dtype) * cast(scale, dtype), result)


# aten::_fused_dropout(Tensor self, float p, Generator? generator=None) -> (Tensor, Tensor)
@kernel("_fused_dropout")
def fused_dropout(self, p, *, key):
    """`p` is the probability to keep."""
    kept = _chance_of_number(key, self.shape, p)
    return native_dropout_backward(self, kept, 1 / p), cast(kept, np.uint8)
