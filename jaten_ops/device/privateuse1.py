"""The device `jax`: torch's PrivateUse1 slot, taken if it is free, and the module `torch.jax`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import Any

import jax
import torch
from torch.utils import backend_registration

from ..arrays import seeds
from ..errors import DeviceSlotError
from . import autograd_engine, streams

_UNCLAIMED = "privateuseone"
# functions that query the module for the device of plain tensors; private to torch, and a test of each fails if it is
# renamed
_DENIED = frozenset({
    ("torch._utils", "_get_available_device_type"),  # nn.DataParallel would move any model to the device
    ("torch.distributed.checkpoint.filesystem", "_write_files_from_queue"),  # and then wait for it, as with CUDA
})  # fmt: skip
_Device = torch.device | str | int | None


def index_of(device: _Device) -> int:
    """The index of a JAX device given as an index, string or torch.device; raises RuntimeError if it does not exist."""
    found = device if isinstance(device, int) else torch.device("jax" if device is None else device).index or 0
    if not 0 <= found < len(jax.devices()):
        raise RuntimeError(f"jax:{found}: no such device; JAX has {len(jax.devices())} ({jax.default_backend()})")
    return found


class _Chosen:
    """`with torch.jax.device(i):`; there is no current device to change, but the index is checked."""

    def __init__(self, device: _Device) -> None:
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

    def is_available(self) -> bool:
        """True, but False for torch's functions that would then handle plain tensors differently."""
        caller = sys._getframe(1)
        return (caller.f_globals.get("__name__"), caller.f_code.co_name) not in _DENIED

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(jax.devices())

    def current_device(self) -> int:
        return 0

    def set_device(self, device: _Device) -> None:
        """Checks that the device exists. New tensors go to `jax:0` unless they name another."""
        index_of(device)

    def get_device_name(self, device: _Device = None) -> str:
        return str(jax.devices()[index_of(device)].device_kind)

    def synchronize(self, device: _Device = None) -> None:
        """Waits for the computations that have been started on the device."""
        streams.synchronize()

    def current_stream(self, device: _Device = None) -> streams.Stream:
        return streams.Stream(device)

    default_stream = current_stream

    def stream(self, stream: streams.Stream | None) -> contextlib.AbstractContextManager[Any]:
        """A context for `with torch.jax.stream(...)`, which changes nothing."""
        return contextlib.nullcontext() if stream is None else stream

    def set_stream(self, stream: streams.Stream) -> None:
        """Nothing to do: there is one."""

    def get_device_properties(self, device: _Device = None) -> types.SimpleNamespace:
        """The device's name, and its total memory in bytes."""
        return types.SimpleNamespace(name=self.get_device_name(device), total_memory=self.mem_get_info(device)[1])

    def memory_summary(self, device: _Device = None, abbreviated: bool = False) -> str:
        """The entries of `memory_stats`, a line each."""
        return "\n".join(f"{name}: {value}" for name, value in sorted(self.memory_stats(device).items()))

    def memory_stats(self, device: _Device = None) -> dict[str, int]:
        """Statistics of JAX's allocator, as "bytes_in_use"; without any, as on a CPU, the total size of all arrays."""
        if not streams.has_started():
            return {"bytes_in_use": 0}
        chosen = jax.devices()[index_of(device)]
        stats = chosen.memory_stats()
        if stats:
            return dict(stats)
        return {"bytes_in_use": sum(a.nbytes for a in jax.live_arrays() if chosen in a.devices())}

    def memory_allocated(self, device: _Device = None) -> int:
        return self.memory_stats(device)["bytes_in_use"]

    def max_memory_allocated(self, device: _Device = None) -> int:
        stats = self.memory_stats(device)
        return stats.get("peak_bytes_in_use", stats["bytes_in_use"])

    def memory_reserved(self, device: _Device = None) -> int:
        """The bytes that JAX's allocator holds, if it has statistics; otherwise the size of all arrays."""
        stats = self.memory_stats(device)
        return stats.get("pool_bytes") or stats["bytes_in_use"]

    def max_memory_reserved(self, device: _Device = None) -> int:
        stats = self.memory_stats(device)
        return stats.get("peak_pool_bytes") or max(self.memory_reserved(device), self.max_memory_allocated(device))

    def mem_get_info(self, device: _Device = None) -> tuple[int, int]:
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

    def reset_peak_memory_stats(self, device: _Device = None) -> None:
        """Nothing to do: JAX's allocator keeps the peaks of the process."""

    reset_accumulated_memory_stats = reset_max_memory_allocated = reset_peak_memory_stats

    def manual_seed(self, seed: int) -> None:
        """Seeds torch's default generator, from which the device's random ops draw their seeds."""
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing: `torch.manual_seed` has already seeded torch's default generator."""

    def seed(self) -> None:
        """Seeds torch's default generator with a random number."""
        torch.seed()

    seed_all = seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def get_rng_state(self, device: _Device = "jax") -> torch.Tensor:
        """The state of torch's default generator, from which the device's random ops draw their seeds.

        In a function made by `as_jax`, which draws from a key, it is the number of draws.
        """
        drawn = seeds.rewindable()
        return torch.get_rng_state() if drawn is None else torch.tensor([drawn.position], device="cpu")

    def set_rng_state(self, new_state: torch.Tensor, device: _Device = "jax") -> None:
        """Sets the state that `get_rng_state` returned."""
        drawn = seeds.rewindable()
        if drawn is None:
            torch.set_rng_state(new_state)
        else:
            drawn.position = int(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state() for _ in jax.devices()]

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

in_bad_fork = False
"""True in a process forked from one in which JAX was running; it cannot use the device."""


MODULE = JaxModule("torch.jax")
"""`torch.jax`, once the slot is taken."""

CLAIMED = torch._C._get_privateuse1_backend_name() == _UNCLAIMED
"""True if this library has the device `jax` in this process: no other backend has the slot. `take` takes it."""


def take() -> None:
    """Takes the slot, the last thing that an import does: from then on programs in all threads have the device."""
    # private; the test of this module fails when it goes or changes
    backend_registration._setup_privateuseone_for_python_backend(
        "jax", backend_module=MODULE, device_guard=autograd_engine.Guard()
    )


_only: torch.device | bool | None = None  # JAX's only device; False if it has several, None before they are known


def of_array(array: jax.Array) -> torch.device:
    """The torch device of an array, by the index among JAX's devices; for a sharded array that of the first shard."""
    global _only
    if _only is None:
        _only = torch.device("jax", 0) if len(jax.devices()) == 1 else False
    if isinstance(_only, torch.device):
        return _only
    if isinstance(array, jax.core.Tracer):  # it has no device yet
        return torch.device("jax", _TRACED_ON.get(get_ident(), 0))
    return torch.device("jax", min(map(jax.devices().index, array.devices())))


_TRACED_ON: dict[int, int] = {}  # by thread, where it is not the first


@contextlib.contextmanager
def traced_on(device: torch.device) -> Iterator[None]:
    """For the length of a block, in this thread, tensors of arrays that JAX traces are on a device."""
    thread = get_ident()
    before = _TRACED_ON.get(thread, 0)
    _TRACED_ON[thread] = device.index or 0
    try:
        yield
    finally:
        _TRACED_ON[thread] = before


def put(array: jax.Array, device: _Device) -> jax.Array:
    """An array, moved to the device that a caller names; unmoved if the index is left open."""
    if device is None or torch.device(device).index is None or isinstance(array, jax.core.Tracer):
        return array
    wanted = jax.devices()[index_of(device)]
    return array if array.devices() == {wanted} else jax.device_put(array, wanted)


def require() -> None:
    """Raises DeviceSlotError, which names the owner, unless the device is ours."""
    if not CLAIMED:
        raise DeviceSlotError(torch._C._get_privateuse1_backend_name())
