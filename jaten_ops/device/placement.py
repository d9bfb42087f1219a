"""The JAX device of a tensor on the device `jax`: `jax:0` is the first device of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import jax
import torch

from ..arrays import partitioned
from ..arrays.abstract_arrays import is_abstract

Device = torch.device | str | int | None
"""A device in one of the forms that users write."""


def index_of(device: Device) -> int:
    """The index of a JAX device given as an index, string or torch.device; raises RuntimeError if it does not exist."""
    found = device if isinstance(device, int) else torch.device("jax" if device is None else device).index or 0
    count = len(jax.local_devices())
    if not 0 <= found < count:
        raise RuntimeError(f"jax:{found}: no such device; JAX has {count} ({jax.default_backend()})")
    return found


_only: torch.device | bool | None = None  # JAX's only device; False if it has several, None before they are known
_OF_SHARDING: dict[Any, torch.device] = {}


def of_array(array: jax.Array) -> torch.device:
    """The torch device of an array, by its index among this process's devices; of a partitioned one, that of a part."""
    global _only
    if _only is None:
        _only = torch.device("jax", 0) if len(jax.devices()) == 1 else False
    if isinstance(_only, torch.device):
        return _only
    if isinstance(array, jax.core.Tracer):  # it has no device yet
        return torch.device("jax", _TRACED_ON.get(get_ident(), 0))
    sharding = array.sharding
    found = _OF_SHARDING.get(sharding)
    return of_sharding(sharding) if found is None else found


def of_sharding(sharding: Any) -> torch.device:
    """The torch device of arrays with a sharding."""
    partitioned.note(sharding)
    if is_abstract(sharding):
        return _OF_SHARDING.setdefault(sharding, torch.device("jax", 0))
    local = jax.local_devices()
    found = torch.device("jax", min(local.index(d) for d in sharding.device_set if d in local))
    return _OF_SHARDING.setdefault(sharding, found)


_TRACED_ON: dict[int, int] = {}  # by thread, if it is not the first


@contextlib.contextmanager
def traced_on(device: torch.device) -> Iterator[None]:
    """A context, of this thread, in which tensors of traced arrays are on a device."""
    thread = get_ident()
    before = _TRACED_ON.get(thread, 0)
    _TRACED_ON[thread] = device.index or 0
    try:
        yield
    finally:
        _TRACED_ON[thread] = before


def put_on(array: jax.Array, device: Device) -> jax.Array:
    """An array, moved to the device that a caller names; unmoved if the index is left open."""
    if device is None or torch.device(device).index is None or isinstance(array, jax.core.Tracer):
        return array
    wanted = jax.local_devices()[index_of(device)]
    return array if array.devices() == {wanted} else partitioned.moved(array, wanted)
