"""Changes that a step makes to tensors themselves: `requires_grad`, the memory (`tensor.data = ...`), hooks.

None of these is an operator. So the tensors that a step reaches are compared with how they were before it ran, then
they become that again, and each call of the program makes the changes anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ..arrays.storage_views import View
from ..tensor.tensor import Tensor, become
from .gradient_hooks import hooks_of
from .holders import Reach, view_on_device
from .result_recipes import Outcome, Recipe, Recipes


class _Before(NamedTuple):
    """A tensor before the step."""

    tensor: torch.Tensor
    is_leaf: bool
    requires_grad: bool
    view: View | None
    dtype: torch.dtype
    hooks: tuple[Any, Any]


class Change(NamedTuple):
    """The changes of one tensor, which is held or given.

    Attributes:
        at: its index among the tensors that the step reaches, or else among the arguments.
        is_held: whether it is the former.
        requires_grad: the new flag; None if it is unchanged.
        data: the recipe of a tensor whose memory it gets; None if it is unchanged.
    """

    at: int
    is_held: bool
    requires_grad: bool | None
    data: Recipe | None


class Watched:
    """The tensors that a step may change, as they are when this is made."""

    def __init__(self, held: Sequence[torch.Tensor], given: Sequence[Any]) -> None:
        self._at: dict[int, tuple[int, bool]] = {}
        self._before: list[_Before] = []
        for i, tensor in enumerate(held):
            self._watch(tensor, i, True)
        for i, value in enumerate(given):
            if isinstance(value, torch.Tensor) and id(value) not in self._at:
                self._watch(value, i, False)

    def _watch(self, tensor: torch.Tensor, at: int, is_held: bool) -> None:
        self._at[id(tensor)] = at, is_held
        view = view_on_device(tensor)
        self._before.append(_Before(tensor, tensor.is_leaf, tensor.requires_grad, view, tensor.dtype, hooks_of(tensor)))

    def changes(self, recipes: Recipes) -> list[Change]:
        """The changes since, as a call is to make them."""
        found = []
        for before in self._before:
            tensor = before.tensor
            if before.is_leaf and tensor.grad_fn is not None and not tensor._is_view():
                tensor.detach_()  # it was written to with a graph, which ends with the step
            flag = tensor.requires_grad if tensor.is_leaf and tensor.requires_grad is not before.requires_grad else None
            moved = isinstance(tensor, Tensor) and before.view is not None and view_on_device(tensor) is not before.view
            if flag is not None or moved:
                data = recipes.of_data(tensor) if moved else None
                found.append(Change(*self._at[id(tensor)], flag, data))
        return found

    def undo(self, *, hooks: bool = False) -> None:
        """Makes the tensors what they were before.

        Args:
            hooks: whether gradient hooks are undone as well, as after an error.
        """
        for tensor, is_leaf, requires_grad, view, dtype, had in self._before:
            if view is not None and isinstance(tensor, Tensor) and view_on_device(tensor) is not view:
                become(tensor, view, dtype)
            if is_leaf and tensor.grad_fn is not None and not tensor._is_view():
                tensor.detach_()
            if tensor.is_leaf and tensor.requires_grad is not requires_grad:
                tensor.requires_grad_(requires_grad)
            for before, now in zip(had, hooks_of(tensor), strict=True) if hooks else ():
                if before is None and now is not None:
                    now.clear()


def make(changes: Iterable[Change], reach: Reach, given: Sequence[Any], outcome: Outcome) -> None:
    """Makes the changes of a call."""
    for change in changes:
        tensor = reach.tensors[change.at] if change.is_held else given[change.at]
        if change.data is not None:
            tensor.data = outcome.make(change.data)
            if change.is_held:
                reach.moved(change.at)
        if change.requires_grad is not None:
            tensor.requires_grad_(change.requires_grad)
