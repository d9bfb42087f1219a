"""Operators on the device `jax` that return Python numbers and bools instead of tensors."""

from __future__ import annotations

from typing import Any

import torch

from ..arrays import attributes, bridge, carrier, partitioned
from ..arrays.observers import OBSERVERS, read_number
from ..arrays.storage_views import Storage, View
from ..registry.handlers import ABOVE_AUTOGRAD, BELOW_PYTHON, handler
from ..tensor.operand_values import is_traced
from ..tensor.tensor import array_of, has_values, may_leave
from ..xla import traced_constants
from .functional import functional
from .operands import to_carrier


@handler("aten::_local_scalar_dense", keys=(BELOW_PYTHON,))  # torch.tensor([x, y]) reads its numbers below
def item(tensor: torch.Tensor) -> Any:
    """The number in a tensor of one element."""
    if is_traced(tensor):
        return torch.ops.aten._local_scalar_dense(to_carrier(tensor))
    if OBSERVERS:
        return read_number(array_of(tensor))
    number = _element(tensor)
    return traced_constants.number_in(array_of(tensor)) if number is None else number


def _element(tensor: torch.Tensor) -> Any:
    """The number in a view of one element, read in the storage's memory; None where it is not on a CPU."""
    place = attributes.place_of(tensor)
    if type(place) is not View or type(place.storage) is not Storage:
        return None
    values = partitioned.values_on_host(place.storage.array)
    if values is None or place.offset >= values.size:  # its memory may be freed
        return None
    return values.reshape(-1)[place.offset].item()


@handler("aten::_linalg_check_errors")
def linalg_check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Raises ATen's error, which says where the singular matrix is, if there are values."""
    if has_values(info):
        torch.ops.aten._linalg_check_errors(bridge.to_host(array_of(info)), api_name, is_matrix=is_matrix)
    else:
        functional("_linalg_check_errors")(info, api_name, is_matrix=is_matrix)


@handler("aten::_assert_async", "aten::_assert_async.msg")
def assert_async(holds: torch.Tensor, *message: str) -> None:
    """Raises RuntimeError unless a tensor of one element holds. Of the nodes without results torch keeps ATen's own."""
    if is_traced(holds):
        torch.ops.aten._assert_async(to_carrier(holds), *message)
    else:
        functional("_assert_async.msg" if message else "_assert_async")(holds, *message)


@handler("aten::record_stream")
def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """Nothing to do: JAX keeps an array as long as a computation reads it."""


@handler("aten::is_set_to")
def is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors are the same elements of one storage, and lie there in the same way."""
    one, two = carrier.view_of(tensor), carrier.view_of(other)
    same = one.shape == two.shape and one.strides() == two.strides() and one.offset == two.offset
    return same and one.storage is two.storage


@handler("aten::is_same_size")
def is_same_size(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors, on any devices, have the same shape."""
    return tensor.shape == other.shape


# Queries of C++ code that does not take symbols: they become numbers, as for torch's own fake tensors.


@handler("aten::size")
def size(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(int, tensor.shape))


@handler("aten::stride")
def stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(int, tensor.stride()))


@handler("aten::storage_offset")
def storage_offset(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset())


@handler("aten::_nested_tensor_from_mask_left_aligned")
def may_be_nested(tensor: torch.Tensor, mask: torch.Tensor) -> bool:
    """False, so that torch makes no nested tensor, which is not one array; nn.TransformerEncoder then uses the mask."""
    return False


@handler("aten::_has_compatible_shallow_copy_type", keys=(ABOVE_AUTOGRAD,))
def may_take_data(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    """The check of modules before they move a parameter by `.data = `."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return may_leave(tensor, new) or torch.ops.aten._has_compatible_shallow_copy_type.default._op_dk(key, tensor, new)
