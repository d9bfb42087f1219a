"""`torch.accelerator`: the process keeps the accelerator that it had, and memory functions also serve the device.

torch's C++ reports the device in the PrivateUse1 slot as the accelerator, and `torch.accelerator`, collectives, FSDP,
device meshes, DataLoader, `fork_rng`, and all programs that choose a device themselves would use it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ..device.privateuse1 import MODULE

_KEYS = {
    "allocated_bytes.all.current": MODULE.memory_allocated,
    "allocated_bytes.all.peak": MODULE.max_memory_allocated,
    "reserved_bytes.all.current": MODULE.memory_reserved,
    "reserved_bytes.all.peak": MODULE.max_memory_reserved,
}


_BEFORE = torch.accelerator.current_accelerator()
"""The accelerator from before the slot was taken: mostly none."""


def kept(_known: Any) -> Callable[[], torch.device | None]:
    """`_accelerator_getAccelerator`: the accelerator from before."""
    return lambda: _BEFORE


@functools.cache
def _has_another() -> bool:
    """True if the process can use an accelerator of torch's own: a torch built for CUDA may run without a GPU.

    This is asked when a function is called, since it starts CUDA, which an import is not to do.
    """
    return _BEFORE is not None and bool(torch.get_device_module(_BEFORE).is_available())


def kept_or_cpu(_known: Any) -> Callable[..., torch.device]:
    """`_get_accelerator`: the same, and the CPU where the process can use none, whether it is to be checked or not."""

    def found(check: bool | None = None) -> torch.device:
        return _BEFORE if _BEFORE is not None and _has_another() else torch.device("cpu")

    return found


def _has_allocator() -> bool:
    """False: there is no C++ allocator whose caches and counts could be cleared."""
    return False


def _empty_host_cache() -> None:
    """Does nothing: torch's own function calls C++, which would end the process."""


def _memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
    return OrderedDict((name, ask(device_index)) for name, ask in _KEYS.items())


def _synchronize(device: Any = None, /) -> None:
    MODULE.synchronize(device)


def _get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    return MODULE.get_memory_info(device_index)


def _instead(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """A replacement for processes without an accelerator; others call their accelerator's function."""

    def replacement(known: Any) -> Callable[..., Any]:
        @functools.wraps(known)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (known if _has_another() else function)(*args, **kwargs)

        return call

    return replacement


has_allocator = _instead(_has_allocator)
empty_host_cache, memory_stats = _instead(_empty_host_cache), _instead(_memory_stats)
get_memory_info, synchronize = _instead(_get_memory_info), _instead(_synchronize)
