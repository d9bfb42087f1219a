"""The device `jax` for Dynamo and Inductor: `get_interface_for_device("jax")`."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from jaten_ops.device.placement import index_of
from jaten_ops.device.privateuse1 import CLAIMED
from jaten_ops.device.torch_jax import JaxModule


class JaxInterface(DeviceInterface):
    """Dynamo's interface to `torch.jax`. Queries of Inductor's kernel generation are left to torch's base class."""

    device = JaxModule.device  # type: ignore[assignment]  # torch's are classes within it, and no base of others
    Event = JaxModule.Event  # type: ignore[assignment]  # as above
    Stream = JaxModule.Stream  # type: ignore[assignment]  # as above

    class Worker:  # type: ignore[assignment]  # as above
        """The same in another process."""

        @staticmethod
        def set_device(index: int) -> None:
            index_of(index)

        @staticmethod
        def current_device() -> int:
            return 0

        @staticmethod
        def get_device_properties(where: Any = None) -> Any:
            return torch.get_device_module("jax").get_device_properties(where)


_ANSWERED = (
    *("current_device", "current_stream", "device_count", "is_available", "is_bf16_supported", "set_device"),
    *("set_stream", "stream", "synchronize"),
)


def register_interface() -> None:
    """Registers the interface, if this library has the device."""
    if not CLAIMED:
        return
    module = torch.get_device_module("jax")
    for name in _ANSWERED:
        setattr(JaxInterface, name, staticmethod(getattr(module, name)))
    register_interface_for_device("jax", JaxInterface)
