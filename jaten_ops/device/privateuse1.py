"""torch's PrivateUse1 slot, which the device `jax` takes if it is free."""

from __future__ import annotations

import torch
from torch.utils import backend_registration

from ..errors import DeviceSlotError
from . import autograd_engine
from .torch_jax import JaxModule

_UNCLAIMED = "privateuseone"

MODULE = JaxModule("torch.jax")
"""`torch.jax`, once the slot is taken."""

CLAIMED = torch._C._get_privateuse1_backend_name() == _UNCLAIMED
"""True if this library has the device `jax` in this process: no other backend has the slot. `take_slot` takes it."""


def take_slot() -> None:
    """Takes the slot, as the last step of an import: from then on programs in all threads have the device."""
    # private; the test of this module fails when it goes or changes
    backend_registration._setup_privateuseone_for_python_backend(
        "jax", backend_module=MODULE, device_guard=autograd_engine.Guard()
    )


def require_slot() -> None:
    """Raises DeviceSlotError, which names the owner, unless the device is ours."""
    if not CLAIMED:
        raise DeviceSlotError(torch._C._get_privateuse1_backend_name())
