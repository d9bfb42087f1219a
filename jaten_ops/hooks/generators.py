"""`torch.Generator(device="jax")`, from which random operators on the device draw their seeds.

torch creates generators in a device's C++ code. A device written in Python has none, so it uses those of the CPU.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device import placement
from ..tracing import opaque_methods

_Generator = torch._C.Generator


@opaque_methods
class _Kind(type(_Generator)):  # type: ignore[misc]  # a class of torch's that a type checker does not see
    """The class of `torch.Generator`, of which torch's own generators are instances."""

    def __call__(cls, device: torch.device | str | int | None = None) -> Any:
        where = _of_cpu(device)
        return _Generator(where) if cls is Generator else super().__call__(where)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _Generator) if cls is Generator else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _Generator) if cls is Generator else super().__subclasscheck__(other)


class Generator(_Generator, metaclass=_Kind):
    """`torch.Generator`: a call makes torch's own generator, and one of the CPU for the device `jax`.

    It has no class of its own, since Dynamo only accepts torch's.

    Raises:
        RuntimeError: JAX has no such device.
    """


def _of_cpu(where: torch.device | str | int | None) -> torch.device:
    found = torch.device("cpu" if where is None else where)
    if found.type != "jax":
        return found
    placement.index_of(found)
    return torch.device("cpu")
