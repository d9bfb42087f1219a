"""Operands of operators on the device: their values, their layout, and numbers as arrays."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from ..arrays import attributes, carrier
from ..arrays.storage_views import View
from ..errors import UnsupportedInputError
from ..xla.traced_constants import constant_value
from ..xla.x64 import Enabled


class Traced(Exception):
    """An operand has no values: a tracer runs the program."""


def is_traced(tensor: torch.Tensor) -> bool:
    """True if a tensor is a placeholder of Dynamo or AOTAutograd, without values."""
    if carrier.is_real(tensor):
        return False
    return isinstance(tensor, FakeTensor | FunctionalTensor) or tensor.device.type == "jax"


def has_row_major_values(tensor: torch.Tensor) -> bool:
    """True if a tensor has values and is contiguous."""
    place = attributes.place_of(tensor)
    return place is not None and (type(place) is not View or place.is_plain())


def shared_view(tensor: torch.Tensor) -> View | None:
    """The view of a tensor's values if other tensors may share them; otherwise, and without values, None."""
    place = attributes.place_of(tensor)
    return place if type(place) is View else None


_NUMBERS: dict[type, dict[Any, jax.Array]] = {float: {}, int: {}}
_MOST_NUMBERS = 512


def number(value: Any) -> Any:
    """A Python number as an operand: the same array each time, which JAX passes faster than the number."""
    known = _NUMBERS.get(type(value))
    if known is None:
        return value
    found = known.get(value)
    return _number(value) if found is None else found


def _number(value: Any) -> Any:
    if not value:  # 0.0 and -0.0 are the same key
        return value
    with Enabled():
        array = jnp.asarray(value)
    if isinstance(array, jax.core.Tracer):
        return value
    known = _NUMBERS[type(value)]
    if len(known) >= _MOST_NUMBERS:
        known.clear()
    known[value] = array
    return array


def two_devices(one: str, two: str, *_others: str) -> RuntimeError:
    """torch's error for a call with tensors on several devices."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {one} and {two}!"
        " (move one with .to(...))"
    )


class _Constants(threading.local):
    """A thread's answer to whether tensors of the CPU are constants beside those of the device."""

    are_taken = False


_CONSTANTS = _Constants()


@contextlib.contextmanager
def cpu_constants() -> Iterator[None]:
    """A context in which tensors of the CPU are constants beside those of the device, as NumPy's arrays in JAX."""
    before, _CONSTANTS.are_taken = _CONSTANTS.are_taken, True
    try:
        yield
    finally:
        _CONSTANTS.are_taken = before


def takes_constants() -> bool:
    """True where tensors of the CPU are constants."""
    return _CONSTANTS.are_taken


def is_constant(tensor: torch.Tensor) -> bool:
    """True for a tensor of the CPU where such are constants."""
    return _CONSTANTS.are_taken and tensor.device.type == "cpu"


def constant_written() -> UnsupportedInputError:
    """The error for a write of traced values to a constant."""
    return UnsupportedInputError(
        "a torch function that JAX traces", "one that writes to a tensor of the CPU, which is a constant there",
        "one that makes it on the device of its arguments: with device=x.device, or by x.new_zeros(...); or whose"
        " module, with its buffers, is given to as_jax(module, mutable=True)",
    )  # fmt: skip


def stays(tensor: torch.Tensor, array: Any, device: Any) -> bool:
    """True if a move to the CPU is none, within `cpu_constants`: JAX traces the array, or will its gradient."""
    if not _CONSTANTS.are_taken or torch.device(device).type != "cpu":
        return False
    return tensor.requires_grad or constant_value(array) is None
