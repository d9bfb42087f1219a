"""Tensors in torch's memory that a step reaches: operators on them alone run in Python, so no program has them.

A step that writes to one is traced at each call. What was computed from one is a constant of the program, which holds
as long as that tensor does; one that an operator of the device has taken itself is an operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.weak import TensorWeakRef

from .holders import Reach

_MOST_COPIED = 1 << 16  # elements: only values of smaller tensors are restored after an error


class Assumed(NamedTuple):
    """A tensor that a program has been made with.

    Attributes:
        at: its index among the tensors that the step reaches.
        ref: the tensor.
        version: the version of its values; None if they do not matter.
    """

    at: int
    ref: TensorWeakRef
    version: int | None

    def is_outdated(self) -> bool:
        """True if the tensor is gone, or its values are others for good."""
        tensor = self.ref()
        return tensor is None or self.version not in (None, tensor._version)

    def holds(self, reach: Reach) -> bool:
        tensor = reach.tensors[self.at]
        return self.ref() is tensor and self.version in (None, tensor._version)


class CpuTensors:
    """The tensors in torch's memory among those that a step reaches, as they are when this is made."""

    def __init__(self, held: Sequence[torch.Tensor]) -> None:
        mine = [(i, t) for i, t in enumerate(held) if t.device.type == "cpu" and not t.is_inference()]
        self._all = [(i, t, t._version, t.detach().clone() if t.numel() <= _MOST_COPIED else None) for i, t in mine]

    def are_written(self) -> bool:
        return any(t._version != version for _, t, version, _ in self._all)

    def assumed(self, operands: frozenset[int]) -> list[Assumed]:
        """The assumptions of a program; `operands` are the tensors, by `id`, whose values it takes at each call."""
        return [Assumed(i, TensorWeakRef(t), None if id(t) in operands else v) for i, t, v, _ in self._all]

    def restore(self) -> None:
        """Makes them what they were, as far as their values were kept."""
        for _, tensor, version, values in self._all:
            if tensor._version != version and values is not None and tensor.shape == values.shape:
                tensor.detach().copy_(values)
