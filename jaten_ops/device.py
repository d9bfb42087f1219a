"""The device `jax`: torch's PrivateUse1 slot, taken if it is free."""

from __future__ import annotations

import jax
import torch
from torch.utils import backend_registration

from .errors import DeviceSlotError

_UNCLAIMED = "privateuseone"


class JaxModule:
    """What `torch.jax` and `torch.get_device_module("jax")` answer."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def synchronize(self, device: torch.device | str | int | None = None) -> None:
        """Waits for the computations that have been started on the device."""
        jax.effects_barrier()
        for array in jax.live_arrays():
            array.block_until_ready()

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to do: random ops on the device draw their seed from torch's default generator."""

    def get_rng_state(self, device: torch.device | str | int = "jax") -> torch.Tensor:
        """The state of torch's default generator, from which the device's random ops draw their seeds."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: torch.device | str | int = "jax") -> None:
        """Sets the state that `get_rng_state` returned."""
        torch.set_rng_state(new_state)

    def _is_in_bad_fork(self) -> bool:
        return False


def claim() -> bool:
    """Takes the PrivateUse1 slot for the device `jax`; False, and nothing changed, if another backend has it."""
    if torch._C._get_privateuse1_backend_name() != _UNCLAIMED:
        return False
    # private; the test of this module fails when it goes or changes
    backend_registration._setup_privateuseone_for_python_backend("jax", backend_module=JaxModule())
    return True


CLAIMED = claim()
"""Whether the device `jax` is ours in this process."""


_only: torch.device | bool | None = None  # JAX's only device; False if it has several, None before they are known


def of_array(array: jax.Array) -> torch.device:
    """The torch device on which an array is: the index among JAX's devices; that of the first for a sharded one."""
    global _only
    if _only is None:
        _only = torch.device("jax", 0) if len(jax.devices()) == 1 else False
    if isinstance(_only, torch.device):
        return _only
    return torch.device("jax", min(map(jax.devices().index, array.devices())))


def require() -> None:
    """Raises DeviceSlotError, which names the owner, unless the device is ours."""
    if not CLAIMED:
        raise DeviceSlotError(torch._C._get_privateuse1_backend_name())
