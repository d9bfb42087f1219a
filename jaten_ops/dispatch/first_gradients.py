"""`ones_like` of one number on the device: what `loss.backward()` begins with."""

from __future__ import annotations

from typing import Any

import jax
import torch

from ..arrays import attributes, partitioned
from ..arrays.observers import OBSERVERS
from ..arrays.storage_views import View
from ..registry.handlers import handler
from ..tensor.tensor import array_of, from_array
from .functional import functional

_ONES: dict[tuple[torch.dtype, Any, bool], jax.Array] = {}


@handler("aten::ones_like")
def ones_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """As ATen's. For a single number the result has the same array each time, which never changes."""
    place = attributes.place_of(tensor)
    array: Any = place.storage.root.array if type(place) is View else place
    if tensor.dim() or OBSERVERS or partitioned.MET or not _has_values(array) or not _is_like(tensor, **options):
        return functional("ones_like")(tensor, **options)
    key = tensor.dtype, array.sharding, array.committed
    found = _ONES.get(key)
    if found is None or found.is_deleted():  # a program may have been given it
        found = _ONES[key] = array_of(functional("ones_like")(tensor))
    return from_array(found)


def _is_like(tensor: torch.Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, **others: Any) -> bool:
    """True if the options of a call name what the tensor is anyway."""
    others.pop("memory_format", None)  # one number has but one
    return (
        dtype in (None, tensor.dtype)
        and layout in (None, torch.strided)
        and device in (None, tensor.device)
        and not any(others.values())
    )


def _has_values(array: Any) -> bool:
    return isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
