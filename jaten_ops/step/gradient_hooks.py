"""Hooks of gradients, and those of all modules and optimizers: a step is traced with them, and does what they do."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch.nn.modules import module
from torch.optim import optimizer
from torch.utils.hooks import RemovableHandle

Table = dict[int, Any]

OF_ALL: tuple[Table, ...] = (
    module._global_forward_hooks, module._global_forward_pre_hooks, module._global_backward_hooks,
    module._global_backward_pre_hooks, optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks,
)  # fmt: skip
"""The hooks of all modules and optimizers."""


def hooks_of(tensor: torch.Tensor) -> tuple[Table | None, Table | None]:
    """The hooks of a tensor's gradient, and those after it is accumulated; None as long as there was none."""
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


class HooksOfTensors:
    """The tables of the hooks of tensors at one time, not their contents.

    Asking a tensor for its tables takes half a microsecond. But each hook, wherever it is added, has the next number:
    as long as that is the same, none of these tensors has a new one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._number = RemovableHandle.next_id
        self._tensors = tensors
        self._tables = [*map(hooks_of, tensors)]

    def are_current(self) -> bool:
        """True if no tensor has got a table since."""
        number = RemovableHandle.next_id
        if self._number == number:
            return True
        for tensor, tables in zip(self._tensors, self._tables, strict=True):
            if not all(map(is_, tables, hooks_of(tensor))):
                return False
        self._number = number
        return True
