"""The carrier: a bare torch tensor on the device `jax` that holds a `jax.Array` as an attribute and no storage.

Users hold `jaten_ops.Tensor`, which wraps one; compiled graphs and `jaten::` kernels see the carriers themselves.
"""

from __future__ import annotations

import jax
import torch

from .bridge import TORCH_DTYPES
from .errors import UnsupportedInputError


def wrap(array: jax.Array) -> torch.Tensor:
    """A new carrier of an array, with row-major strides."""
    tensor = torch._C._acc.create_empty_tensor(array.shape, TORCH_DTYPES[array.dtype])
    tensor._jaten_array = array  # type: ignore[attr-defined]  # the attribute makes it a carrier
    return tensor


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor on the device holds an array; fake and functional tensors, met while tracing, do not."""
    return hasattr(tensor, "_jaten_array")


def unwrap(tensor: torch.Tensor) -> jax.Array:
    """The array of a carrier.

    Raises:
        UnsupportedInputError: the tensor is no carrier: it came onto the device by another way than jaten's.
    """
    try:
        return tensor._jaten_array  # type: ignore[attr-defined]  # as above
    except AttributeError:
        raise UnsupportedInputError(
            "tensor", f"a {type(tensor).__name__} on {tensor.device}", "a tensor on the device 'jax' made by jaten"
        ) from None


def replace(tensor: torch.Tensor, array: jax.Array) -> None:
    """Gives a carrier another array of the same shape and dtype: all tensors of this carrier see it."""
    tensor._jaten_array = array  # type: ignore[attr-defined]  # as above
