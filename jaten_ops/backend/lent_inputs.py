"""Inputs of compiled graphs that lie in torch's memory, as operands of executables: for good, or for one call."""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from jaten_ops.arrays import bridge
from jaten_ops.cpu.layouts import Order


class Static:
    """The array of an input that keeps its memory from call to call, as parameters do.

    It keeps the memory alive, so that no other tensor can get its address. Threads share it, and may call with
    different tensors, so a call reads one pair, which is replaced whole. One graph may serve several modules, as the
    equal layers of a net after a graph break: the arrays of their tensors are known as long as these live.

    Args:
        order: the order in which the dimensions lie, None for the program's.
        place: the JAX device.

    Attributes:
        held: where the memory is, -1 if the array is a copy; and the array.
    """

    __slots__ = ("_known", "_order", "_place", "held")

    def __init__(self, order: Order | None, place: Any) -> None:
        self._order, self._place = order, place
        self._known: WeakIdKeyDictionary | None = None
        self.held: tuple[int, jax.Array | None] = -1, None

    def keep(self, tensor: torch.Tensor) -> jax.Array:
        """The array of a tensor, converted once for its memory."""
        known = None if self._known is None else self._known.get(tensor)
        if known is not None and known[0] == tensor.data_ptr():
            self.held = known
            return known[1]  # type: ignore[no-any-return]  # torch's dictionary has no types
        alias = tensor.detach()  # an array keeps the tensor that it is made of
        array = bridge.borrow(alias if self._order is None else alias.permute(self._order), self._place)
        if not bridge.shares_memory(array, tensor):
            self.held = -1, array
            return array
        if self.held[0] != -1:  # it is not the only one
            if self._known is None:
                self._known = WeakIdKeyDictionary()
            self._known[tensor] = tensor.data_ptr(), array
        self.held = tensor.data_ptr(), array
        return array


class Lent:
    """An input in torch's memory, contiguous and of one shape, that is lent for the length of a call.

    Inputs often lie where those of the call before lay, as the next batch in the memory of the last. So the second time
    an array is made of the address. It keeps no memory alive, and is an operand only for a tensor that lies there then.

    Args:
        tensor: the first such input.
        place: the JAX device.

    Attributes:
        held: as in `Static`.
    """

    __slots__ = ("_dtype", "_memory", "_place", "_seen", "_shape", "held")

    def __init__(self, tensor: torch.Tensor, place: Any) -> None:
        self._dtype, self._shape, self._place = bridge.to_numpy_dtype(tensor.dtype), tuple(tensor.shape), place
        self._memory = ctypes.c_char * tensor.nbytes
        self._seen = -1
        self.held: tuple[int, jax.Array | None] = -1, None

    def take(self, tensor: torch.Tensor) -> Any:
        """The operand of a tensor that lies elsewhere than the one before."""
        if not tensor.is_contiguous() or tensor.is_neg() or tensor._is_zerotensor():
            return bridge.lend(tensor, self._place)
        address = tensor.data_ptr()
        memory: Any = self._memory.from_address(address)
        lent = np.ndarray(self._shape, self._dtype, memory)
        if address == self._seen and address % bridge.ALIGNMENT == 0:
            self.held = address, bridge.borrow(torch.from_numpy(lent), self._place)
        self._seen = address
        return lent
