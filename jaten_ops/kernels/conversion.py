"""Copies and conversions of dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, is_complex, is_float


def convert(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` in another dtype, as ATen's `to` does it on a CPU.

    A float that an integer type cannot hold is undefined in C++. ATen's binaries go through int32, or int64 for wide
    types, where such a float and NaN become the lowest value, and then drop the high bits: 300.0 is 44 as uint8.
    """
    if is_complex(x.dtype) and dtype.kind != "b" and not is_complex(dtype):
        x = lax.real(x)
    if dtype.name == "float8_e4m3fn":  # it has no infinity: the largest value replaces it
        wide = np.promote_types(np.float32, x.dtype)
        limit = np.array(jnp.finfo(dtype).max, wide)
        x = lax.clamp(-limit, cast(x, wide), limit)
    if dtype.name == "float8_e8m0fnu":  # it has no sign and no zero: the smallest value replaces them
        least = lax.bitcast_convert_type(np.zeros(x.shape, np.uint8), dtype)
        return lax.select(x == 0, least, cast(lax.abs(x), dtype))
    if not is_float(x.dtype) or dtype.kind not in "iu":
        return cast(x, dtype)
    wide = np.int64 if dtype.itemsize == 8 or dtype == np.uint32 else np.int32
    lowest = np.array(np.iinfo(wide).min, wide)
    whole = lax.convert_element_type(x, wide)
    # -lowest is a power of two, so it is exact in every float type but float16, where it is infinite
    fits = x < -float(lowest) if x.dtype != np.float16 else jnp.isfinite(x)
    signed = cast(jnp.where(fits, whole, lowest), dtype)
    if dtype != np.uint64:
        return signed
    return jnp.where(x >= -float(lowest), lax.convert_element_type(x, dtype), signed)


# aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
@kernel("_to_copy")
def to_copy(self, *, dtype=None):
    return lax.copy_p.bind(self) if dtype is None or dtype == self.dtype else convert(self, dtype)


# aten::dequantize.self(Tensor self) -> Tensor
@kernel("dequantize.self")
def dequantize(self):
    """A float32 copy: no tensor has a quantizer here."""
    return to_copy(self, dtype=np.dtype("float32"))


# aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
@kernel("clone")
def clone(self):
    # a copy even where XLA would return the same array: the caller may write to the result
    return lax.copy_p.bind(self)


# aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor
@kernel("copy")
def copy(self, src):
    return lax.broadcast_in_dim(convert(src, self.dtype), self.shape, range(self.ndim - src.ndim, self.ndim))


# aten::_copy_from(Tensor self, Tensor dst, bool non_blocking=False) -> Tensor
@kernel("_copy_from")
def copy_from(self, dst):
    """`copy` with its arguments exchanged: `dst` has the dtype and shape, `self` the values."""
    return copy(dst, self)


# aten::_copy_from_and_resize(Tensor self, Tensor dst) -> Tensor
@kernel("_copy_from_and_resize")
def copy_from_and_resize(self, dst):
    return to_copy(self, dtype=dst.dtype)


# aten::_local_scalar_dense(Tensor self) -> Scalar
@kernel("_local_scalar_dense")
def local_scalar_dense(self):
    if self.size != 1:
        raise RuntimeError(f"a Tensor with {self.size} elements cannot be converted to Scalar")
    return lax.reshape(self, ())


# aten::resize(Tensor self, SymInt[] size, *, MemoryFormat? memory_format=None) -> Tensor
# aten::_resize_output(Tensor self, SymInt[] size, Device device) -> Tensor
@kernel("resize", "_resize_output")
def resize(self, size):
    """The elements in order; additional ones are undefined in ATen, and zero here."""
    numel = int(np.prod(size, dtype=np.int64))
    flat = lax.reshape(self, (self.size,))
    return lax.reshape(lax.pad(flat, np.zeros((), self.dtype), [(0, numel - self.size, 0)]), size)


# aten::resize_as(Tensor self, Tensor the_template, *, MemoryFormat? memory_format=None) -> Tensor
@kernel("resize_as")
def resize_as(self, the_template):
    return resize(self, the_template.shape)


# aten::set.source_Tensor(Tensor self, Tensor source) -> Tensor
@kernel("set.source_Tensor")
def set_source_tensor(self, source):
    return lax.copy_p.bind(source)


# aten::set(Tensor self) -> Tensor
@kernel("set")
def set_empty(self):
    return lax.full((0,), 0, self.dtype)
