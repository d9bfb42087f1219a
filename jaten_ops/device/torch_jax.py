"""The module `torch.jax`, which answers for the device as `torch.cuda` does for CUDA."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from . import streams
from .placement import Device, index_of

# functions that query the module for the device of plain tensors; private to torch, and a test of each fails if it is
# renamed
_DENIED = frozenset({
    ("torch._utils", "_get_available_device_type"),  # nn.DataParallel would move any model to the device
    ("torch.distributed.checkpoint.filesystem", "_write_files_from_queue"),  # and then wait for it, as with CUDA
})  # fmt: skip
ASKED: dict[tuple[str, str], Callable[[], None]] = {}
"""Functions to call when a function of torch, by its module and name, asks whether the device is there: to use it."""
in_bad_fork = False
"""True in a process forked from one in which JAX was running; it cannot use the device."""


class _Chosen:
    """`with torch.jax.device(i):`; there is no current device to change, but the index is checked."""

    def __init__(self, device: Device) -> None:
        self.idx = index_of(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: Any) -> None:
        pass


class JaxModule(types.ModuleType):
    """The module `torch.jax`, also `torch.get_device_module("jax")`. Dynamo finds it again by its name."""

    _initialized = True  # torch.utils.checkpoint saves the generator's state if it is set
    Tensor: type[torch.Tensor]  # the class of tensors of the device, set by its module
    device = _Chosen
    Event = streams.Event
    Stream = streams.Stream
    amp = types.SimpleNamespace(
        autocast=functools.partial(torch.autocast, "jax"), GradScaler=functools.partial(torch.amp.GradScaler, "jax")
    )

    def __dir__(self) -> list[str]:
        return sorted(name for name in dir(type(self)) if not (name.startswith("_") or name in dir(types.ModuleType)))

    def is_available(self) -> bool:
        """True, but False for torch's functions that would then handle plain tensors differently."""
        caller = sys._getframe(1)
        asking = caller.f_globals.get("__name__", ""), caller.f_code.co_name
        if asking in ASKED:
            ASKED[asking]()
        return asking not in _DENIED

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(jax.local_devices())

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Device) -> None:
        """Checks that the device exists. New tensors go to `jax:0` unless they name another."""
        index_of(device)

    def get_device_name(self, device: Device = None) -> str:
        return str(jax.local_devices()[index_of(device)].device_kind)

    def synchronize(self, device: Device = None) -> None:
        """Waits for the computations that have been started on the device."""
        streams.synchronize()

    def current_stream(self, device: Device = None) -> streams.Stream:
        return streams.Stream(device)

    default_stream = current_stream

    def stream(self, stream: streams.Stream | None) -> contextlib.AbstractContextManager[Any]:
        """A context for `with torch.jax.stream(...)`, which changes nothing."""
        return contextlib.nullcontext() if stream is None else stream

    def set_stream(self, stream: streams.Stream) -> None:
        """Nothing to do: there is one."""

    def get_device_properties(self, device: Device = None) -> types.SimpleNamespace:
        """The device's name, and its total memory in bytes."""
        return types.SimpleNamespace(name=self.get_device_name(device), total_memory=self.mem_get_info(device)[1])

    def memory_summary(self, device: Device = None, abbreviated: bool = False) -> str:
        """The entries of `memory_stats`, a line each."""
        return "\n".join(f"{name}: {value}" for name, value in sorted(self.memory_stats(device).items()))

    def memory_stats(self, device: Device = None) -> dict[str, int]:
        """Statistics of JAX's allocator, as "bytes_in_use"; without any, as on a CPU, the total size of all arrays."""
        if not streams.has_started():
            return {"bytes_in_use": 0}
        chosen = jax.local_devices()[index_of(device)]
        stats = chosen.memory_stats()
        if stats:
            return dict(stats)
        return {"bytes_in_use": sum(a.nbytes for a in jax.live_arrays() if chosen in a.devices())}

    def memory_allocated(self, device: Device = None) -> int:
        return self.memory_stats(device)["bytes_in_use"]

    def max_memory_allocated(self, device: Device = None) -> int:
        stats = self.memory_stats(device)
        return stats.get("peak_bytes_in_use", stats["bytes_in_use"])

    def memory_reserved(self, device: Device = None) -> int:
        """The bytes that JAX's allocator holds, if it has statistics; otherwise the size of all arrays."""
        stats = self.memory_stats(device)
        return stats.get("pool_bytes") or stats["bytes_in_use"]

    def max_memory_reserved(self, device: Device = None) -> int:
        stats = self.memory_stats(device)
        return stats.get("peak_pool_bytes") or max(self.memory_reserved(device), self.max_memory_allocated(device))

    def mem_get_info(self, device: Device = None) -> tuple[int, int]:
        """Free and total bytes: those available to JAX; for a CPU, the machine's."""
        stats = self.memory_stats(device)
        if total := stats.get("bytes_limit"):
            return total - stats["bytes_in_use"], total
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    get_memory_info = mem_get_info

    def empty_cache(self) -> None:
        """Nothing to do: memory is JAX's."""

    empty_host_cache = ipc_collect = empty_cache

    def reset_peak_memory_stats(self, device: Device = None) -> None:
        """Nothing to do: JAX's allocator keeps the peaks of the process."""

    reset_accumulated_memory_stats = reset_max_memory_allocated = reset_peak_memory_stats

    def manual_seed(self, seed: int) -> None:
        """Seeds torch's default generator, from which the device's random ops draw their seeds."""
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seeds torch's default generator, of which all devices draw their seeds."""
        torch.default_generator.manual_seed(seed)

    def seed(self) -> None:
        """Seeds torch's default generator with a random number."""
        torch.seed()

    seed_all = seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def get_rng_state(self, device: Device = "jax") -> torch.Tensor:
        """The state of torch's default generator, from which the device's random ops draw their seeds."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Device = "jax") -> None:
        """Sets the state that `get_rng_state` returned."""
        torch.set_rng_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state() for _ in jax.local_devices()]

    def set_rng_state_all(self, new_states: Sequence[torch.Tensor]) -> None:
        """Sets the states that `get_rng_state_all` returned; all are those of one generator."""
        for state in new_states:
            self.set_rng_state(state)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def init(self) -> None:
        """Nothing to do: JAX starts when it is first used."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """The dtypes of `torch.autocast("jax", dtype=...)`."""
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return in_bad_fork


for _name in ("is_available", "is_initialized", "device_count", "current_device", "get_device_name"):
    # as torch.compiler.assume_constant_result, which would import Dynamo: Dynamo cannot trace these
    setattr(vars(JaxModule)[_name], "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute
