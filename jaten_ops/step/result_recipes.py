"""Recipes for the tensors that a step leaves behind, by which each call of its program creates them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..arrays.storage_views import Storage, View
from ..arrays.strides import row_major
from ..tensor.tensor import Tensor, from_array, from_view
from .numbers import Known, node_of
from .places import is_plain
from .state_capture import Capture


class Kept(NamedTuple):
    """The same object at each call: one that the step was given, or a Python value."""

    value: Any


class Held(NamedTuple):
    """The value that a holder has at a place when the call begins."""

    at: int


class Given(NamedTuple):
    """An argument of the call."""

    at: int


class Computed(NamedTuple):
    """A number computed from those of the parameter groups."""

    known: Known


class Made(NamedTuple):
    """A tensor in a storage that the program makes.

    Attributes:
        storage: the index of the storage.
        shape, stride, offset: its layout there; None for all of the storage.
    """

    storage: int
    geometry: tuple[Any, Any, Any] | None
    dtype: torch.dtype
    requires_grad: bool
    is_parameter: bool


class Seen(NamedTuple):
    """A view of a storage that the step was given: the operand's index, and the layout."""

    operand: int
    geometry: tuple[Any, Any, Any]
    dtype: torch.dtype


class Built(NamedTuple):
    """A new list, dict or tuple."""

    structure: Any
    items: tuple[Recipe, ...]


class OfFields(NamedTuple):
    """A new object of a dataclass."""

    cls: type
    fields: tuple[tuple[str, Recipe], ...]


Recipe = Kept | Held | Given | Computed | Made | Seen | Built | OfFields


class Recipes:
    """Creates recipes, and collects the arrays that the program has to return for them.

    Args:
        capture: that of the step.
        held, given, objects: the tensors that it reaches, its arguments, and other objects that it reaches.
    """

    def __init__(
        self, capture: Capture, held: Sequence[torch.Tensor], given: Sequence[Any], objects: Sequence[Any]
    ) -> None:
        self._capture = capture
        self._held = {id(t): i for i, t in enumerate(held)}
        self._given = {id(v): i for i, v in enumerate(given) if isinstance(v, torch.Tensor)}
        self._old = {*map(id, given), *map(id, objects)}
        self.storages: list[Storage] = []
        self._index: dict[int, int] = {}
        self._uses: Counter[int] = Counter()

    def of(self, value: Any) -> Recipe:
        number = node_of(value)
        if number is not None:
            return Computed(number.known())
        if not isinstance(value, torch.Tensor):
            return self._of_object(value)
        if id(value) in self._held:
            return Held(self._held[id(value)])
        if id(value) in self._given:
            return Given(self._given[id(value)])
        if not isinstance(value, Tensor) or not self._capture.is_born(value):
            return Kept(value)
        return self._of_values(value, value.requires_grad and value.is_leaf, isinstance(value, torch.nn.Parameter))

    def _of_object(self, value: Any) -> Recipe:
        """The recipe of what torch does not take apart: a dataclass that the step has made, or the object itself."""
        is_new = dataclasses.is_dataclass(value) and not isinstance(value, type) and id(value) not in self._old
        attributes = _attributes(value) if is_new else {}
        if all(isinstance(v, torch.nn.Module) or is_plain(v) for v in attributes.values()):
            return Kept(value)
        fields = [(name, self.of_collection(v) or self.of(v)) for name, v in attributes.items()]
        return OfFields(type(value), tuple(fields))

    def of_data(self, tensor: torch.Tensor) -> Made | Seen:
        """The recipe of a new tensor with the memory that a tensor has now: of what its `data` is."""
        self._capture.lift(tensor)
        return self._of_values(tensor, False, False)

    def _of_values(self, value: Any, requires_grad: bool, is_parameter: bool) -> Made | Seen:
        view = value.view_of_arrays
        root = view.storage.root
        if view.storage is not root:  # a view with another dtype: a result of its own
            root, view = Storage(view.read()), View.whole(view.read())
        elif id(root) in self._capture.lifted:
            lifted = self._capture.lifted[id(root)]
            return Seen(lifted.operand, (view.shape, view.strides(), view.offset), value.dtype)
        whole = view.is_row_major() and not view.offset and root.array.shape == view.shape
        geometry = None if whole else (view.shape, view.strides(), view.offset)
        return Made(self._at(root), geometry, value.dtype, requires_grad, is_parameter)

    def of_collection(self, value: Any) -> Recipe | None:
        """The recipe of a collection with tensors in it; None for a type that torch cannot take apart."""
        leaves, structure = tree_flatten(value)
        return None if structure.is_leaf() else Built(structure, tuple([self.of(v) for v in leaves]))

    def _at(self, root: Storage) -> int:
        if id(root) not in self._index:
            self._index[id(root)] = len(self.storages)
            self.storages.append(root)
        self._uses[self._index[id(root)]] += 1
        return self._index[id(root)]

    def shared(self) -> frozenset[int]:
        """The storages that several tensors share."""
        return frozenset(at for at, count in self._uses.items() if count > 1)


class Outcome:
    """The results of one call of a program: its arrays, and tensors of them when they are asked for.

    Args:
        arrays: those of the storages that it makes; tensors if they are in torch's memory.
        shared: the storages that several tensors share.
        held, given: the values of the holders, and the arguments of the call.
        values: the numbers of parameter groups.
        operand: finds an operand's storage.
        in_memory: whether its tensors are in torch's memory.
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        shared: frozenset[int],
        held: Sequence[torch.Tensor],
        given: Sequence[Any],
        values: Sequence[float],
        operand: Callable[[int], Storage],
        in_memory: bool = False,
    ) -> None:
        self._arrays, self._shared, self._held, self._given = arrays, shared, held, given
        self._values, self._operand = values, operand
        self._storages: dict[int, Storage] = {}
        self._in_memory = in_memory

    def make(self, recipe: Recipe) -> Any:
        if isinstance(recipe, Made):
            return self._made(recipe)
        if isinstance(recipe, Kept):
            return recipe.value
        if isinstance(recipe, Held):
            return self._held[recipe.at]
        if isinstance(recipe, Given):
            return self._given[recipe.at]
        if isinstance(recipe, Computed):
            return float(recipe.known(self._values))
        if isinstance(recipe, OfFields):
            made: Any = object.__new__(recipe.cls)
            for name, field in recipe.fields:
                object.__setattr__(made, name, self.make(field))  # it may be frozen
            return made
        if isinstance(recipe, Built):
            return tree_unflatten([self.make(item) for item in recipe.items], recipe.structure)
        operand: Any = self._operand(recipe.operand)
        if self._in_memory:
            shape, stride, offset = recipe.geometry
            return operand.alias.detach().as_strided(shape, stride, operand.alias.storage_offset() + offset)
        return from_view(View(operand, *recipe.geometry), recipe.dtype)

    def _made(self, recipe: Made) -> torch.Tensor:
        array = self._arrays[recipe.storage]
        if self._in_memory:
            tensor = array if recipe.storage not in self._shared else array.detach()
            tensor = tensor if recipe.geometry is None else array.as_strided(*recipe.geometry)
        elif recipe.geometry is None and recipe.storage not in self._shared:
            tensor = from_array(array)
        else:
            storage = self._storages.setdefault(recipe.storage, Storage(array))
            geometry = recipe.geometry or (array.shape, row_major(array.shape), 0)
            tensor = from_view(View(storage, *geometry), recipe.dtype)
        if recipe.is_parameter:
            return torch.nn.Parameter(tensor, recipe.requires_grad)
        return tensor.requires_grad_() if recipe.requires_grad else tensor


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object of a dataclass, also of one with slots."""
    fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    return {name: getattr(value, name) for name in fields} | getattr(value, "__dict__", {})
