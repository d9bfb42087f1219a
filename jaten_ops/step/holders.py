"""Everything a step can reach: tensors, the containers that hold them, and the values that decide what it does."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from operator import call, getitem, is_, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from ..arrays.attributes import place_of
from ..arrays.storage_views import Storage, View
from ..tensor.tensor import Tensor
from .code_names import Names
from .gradient_hooks import OF_ALL, HooksOfTensors
from .places import is_plain, plain_items, restore
from .torch_memory import TorchMemory, can_be_lent, lent
from .walk import StepWalk


def view_on_device(tensor: torch.Tensor) -> View | None:
    """The view of a tensor's values; None for one that is not on the device."""
    return tensor.view_of_arrays if isinstance(tensor, Tensor) else None


class Reach(StepWalk):
    """Everything that a step reaches at one time.

    Attributes:
        structure: everything but the tensors that must be unchanged for a program to be valid.
        views, roots: where each tensor lies, and in which storage.
        memory: the places of tensors in torch's memory, if that is where the step computes.
        leaves: the tensors that may have gradients.
    """

    def __init__(self, step: Callable[..., Any], holders: Sequence[Any], names: Names) -> None:
        super().__init__(names)
        size = -1
        while size != len(names.known):  # code that is found late may name attributes that were skipped
            size = len(names.known)
            self._start()
            self._visit(self._roots, 0, "step", step)
            for i, holder in enumerate(holders):
                self._visit(self._roots, i + 1, f"holder {i}", holder)
            for i, hooks in enumerate(OF_ALL):
                self._hooks(f"global hooks {i}", hooks)
        self._finish()

    # the findings

    def _finish(self) -> None:
        self._seen = {}
        self.sizes = [*map(len, self._sized)]
        self._getters: list[Any] = []
        self._watched: list[Any] = []
        for owner, keys in self._plain.values():
            self._getters.append(itemgetter(*keys) if len(keys) > 1 else itemgetter(keys[0]))
            self._watched.append(owner)
        for _, collection in self._large:
            self._getters.append(plain_items)
            self._watched.append(collection)
        self._getters += [_contents_of] * len(self._arrays)
        self._watched += [array for _, array in self._arrays]
        self._saved = [*map(call, self._getters, self._watched)]
        self._counts = [*map(len, self._counted)]
        self.memory: TorchMemory | None = None
        self._lie_in([*map(view_on_device, self.tensors)])
        self._flags = [t.requires_grad for t in self.tensors]
        is_leaf = [t.is_leaf and (t.requires_grad or isinstance(t, torch.nn.Parameter)) for t in self.tensors]
        self.leaves = [*compress(self.tensors, is_leaf)]
        self._gradient_hooks = HooksOfTensors(self.tensors)
        indices = {id(t): i for i, t in enumerate(self.tensors)}
        self.structure = (
            tuple([(p, indices.get(id(v), _kind(v))) for p, v in zip(self.paths, self.values, strict=True)]),
            tuple(self.sizes),
            tuple([(path, type(value), value) for path, value in self._plain_paths]),
            tuple([(path, self._contents(collection, indices)) for path, collection in self._large]),
            tuple([(path, _contents_of(array)) for path, array in self._arrays]),
            tuple([(f.key, f.at) for f in self.floats]),
            tuple([type(o) for o in self.optimizers]),
        )

    def lend(self) -> None:
        """Lets the step compute in torch's memory: tensors there have places as those on the device have."""
        numbers = {id(f.group[f.key]) for f in self.floats}  # which are operands as they are
        self.memory = TorchMemory(self.tensors, numbers)
        self._lie_in(self.memory.views)

    def _lie_in(self, views: list[View | None]) -> None:
        self.views = views
        self.roots: list[Storage | None] = [None if v is None else v.storage.root for v in self.views]
        self.root_at = {id(root): i for i, root in enumerate(self.roots) if root is not None}
        self._sharers = Counter(map(id, self.roots))

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """The index of one of the tensors; None for another one."""
        return self._index.get(id(tensor))

    def place_of(self, tensor: Any) -> View | None:
        """The view of an argument or a gradient, for one call."""
        if self.memory is None or not isinstance(tensor, torch.Tensor):
            return view_on_device(tensor)
        at = self._index.get(id(tensor))
        if at is not None:
            return self.views[at]
        return lent(tensor, is_brief=True) if can_be_lent(tensor) else None

    def _contents(self, collection: Any, indices: dict[int, int]) -> Any:
        """The plain items of a collection for comparing; of a set the others, too, which have no places."""
        if not isinstance(collection, set | frozenset):
            return tuple(plain_items(collection))
        return frozenset([v if is_plain(v) else indices.get(id(v), _kind(v)) for v in collection])

    def signature(self) -> Any:
        """The properties of all this for which a program is made."""
        where: dict[int, int] = {}
        lies = []
        for tensor, view, root in zip(self.tensors, self.views, self.roots, strict=True):
            if view is None or root is None:
                lies.append((tensor.device, tensor.dtype, tensor.shape))
                continue
            at = where.setdefault(id(root), len(where))
            lies.append((at, tensor.dtype, view.shape, view.strides(), view.offset))  # type: ignore[arg-type]
        return self.structure, tuple(lies), tuple(self._flags)

    def is_current(self) -> bool:
        """True if nothing has changed since, but for the values of tensors and numbers."""
        try:
            return (
                [*map(len, self._sized)] == self.sizes
                and self._hold_the_same()
                and [*map(len, self._counted)] == self._counts
                and [*map(call, self._getters, self._watched)] == self._saved
                and self._are_in_place()
                and [t.requires_grad for t in self.tensors] == self._flags
                and self._gradient_hooks.are_current()
            )
        except (LookupError, AttributeError, TypeError, ValueError):
            return False

    def _hold_the_same(self) -> bool:
        if all(map(is_, map(getitem, self.owners, self.keys), self.values)):
            return True
        for collection, size in zip(self._sized, self.sizes, strict=True):
            if len(collection) > size:  # a defaultdict, which made an item that it no longer had
                collection.popitem()
        return False

    def _are_in_place(self) -> bool:
        if self.memory is not None:
            return self.memory.is_current()
        return all(map(is_, map(place_of, self.tensors), self.views))

    def numbers(self) -> list[float]:
        """The values of `floats`, now."""
        found = [f.read() for f in self.floats]
        return [v if type(v) is float else float(v) for v in found]

    def replace(self, place: int, value: Any, *, is_new: bool) -> None:
        """Replaces a tensor or collection.

        Args:
            place: its place.
            value: the new one.
            is_new: whether it is a tensor like the one before; if not, the holders have to be searched again.
        """
        old = self.values[place]
        self.owners[place][self.keys[place]] = value
        if is_new and len(self.places[self._index[id(old)]]) == 1:
            index = self._index.pop(id(old))
            self._index[id(value)] = index
            self.values[place] = self.tensors[index] = value
            self._lies_at(index, self._place_now(index))

    def moved(self, index: int) -> None:
        """Takes note of a tensor's new place, if it lies alone there as it did before."""
        old, new = self.views[index], self._place_now(index)
        if old is None or new is None or _layout(old) != _layout(new):
            return
        if self._sharers[id(self.roots[index])] == 1 and id(new.storage.root) not in self.root_at:
            self._lies_at(index, new)

    def _place_now(self, index: int) -> View | None:
        tensor = self.tensors[index]
        if self.memory is None:
            return view_on_device(tensor)
        return lent(tensor) if can_be_lent(tensor) else None

    def _lies_at(self, index: int, view: View | None) -> None:
        before = id(self.roots[index])
        self.root_at.pop(before, None)
        self.views[index] = view
        if self.memory is not None:
            self.memory.note(index, view)
        self.roots[index] = root = None if view is None else view.storage.root
        self.root_at[id(root)] = index
        self._sharers[before] -= 1
        self._sharers[id(root)] += 1

    def restore(self, only: set[int] | None = None) -> None:
        """Restores collections and attributes, all of them or some by `id`."""
        for holder, copy in self.copies:
            if only is not None and id(holder) not in only:
                continue
            restore(holder, copy)


def _layout(view: View) -> tuple[Any, ...]:
    return view.storage.array.dtype, view.shape, view.strides(), view.offset


class _Contents(NamedTuple):
    """An array of NumPy for comparing."""

    shape: tuple[int, ...]
    dtype: np.dtype
    data: bytes

    def __repr__(self) -> str:
        return np.array2string(np.frombuffer(self.data, self.dtype).reshape(self.shape), threshold=8)


def _contents_of(array: np.ndarray) -> _Contents:
    return _Contents(array.shape, array.dtype, array.tobytes())


def _kind(value: Any) -> Any:
    if isinstance(value, type | types.ModuleType):
        return value
    return value.__code__ if isinstance(value, types.FunctionType) else type(value)


def difference(one: Any, other: Any) -> str:
    """A description, for the log, of the difference between two structures."""
    for mine, its in zip(one, other, strict=True):
        if mine != its:
            for a, b in zip(mine, its, strict=False):
                if a != b:
                    return f"{a!r} is now {b!r}"
            return f"{len(mine)} values are now {len(its)}"
    return "nothing"
