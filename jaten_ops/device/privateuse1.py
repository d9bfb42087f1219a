"""torch's PrivateUse1 slot, which the device `jax` takes if it is free, and if torch uses no GPU."""

from __future__ import annotations

import os

import torch
from torch.utils import backend_registration

from ..errors import DeviceSlotError
from .guard import Guard
from .torch_jax import JaxModule

_UNCLAIMED = "privateuseone"

MODULE = JaxModule("torch.jax")
"""`torch.jax`, once the slot is taken."""


def _is_wanted() -> bool:
    """True if the slot is to be taken: by default, unless torch has a GPU.

    Once the slot is taken torch computes no gradients of CUDA tensors: its engine knows streams of one accelerator,
    and prefers that of the slot (pytorch#161129).
    """
    told = os.environ.get("JATEN_DEVICE", "")
    return told != "0" if told else not torch.cuda.device_count()


CLAIMED = torch._C._get_privateuse1_backend_name() == _UNCLAIMED and _is_wanted()
"""True if this library has the device `jax` in this process, because it is wanted and no other backend has the slot.

`take_slot` takes it.
"""


def take_slot() -> None:
    """Takes the slot, as the last step of an import: from then on programs in all threads have the device."""
    # private; the test of this module fails when it goes or changes
    backend_registration._setup_privateuseone_for_python_backend("jax", backend_module=MODULE, device_guard=Guard())


def require_slot() -> None:
    """Raises DeviceSlotError, which names the owner, or says that there is none, unless the device is ours."""
    if not CLAIMED:
        owner = torch._C._get_privateuse1_backend_name()
        raise DeviceSlotError(None if owner == _UNCLAIMED else owner)
