"""Everything a step can reach: tensors, the containers that hold them, and the values that decide what it does.

The walk starts at the holders that the caller names and at what the step's code names: closures, globals, defaults,
attributes of `self`. It goes through modules, optimizers, other objects and collections. Of objects it sees the
attributes whose names the code mentions, so that a counter which only the training loop reads is none of the step's.
"""

from __future__ import annotations

import enum
import functools
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import call, getitem, is_, itemgetter
from typing import Any, NamedTuple

import torch

from ..arrays.storage_views import Storage, View
from ..errors import UnsupportedInputError
from ..tensor.tensor import Tensor
from .code_names import Names, function_of, holds_state, is_library
from .gradient_hooks import OF_ALL, HooksOfTensors, hooks_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)
_MOST_ITEMS = 64  # the largest collection whose plain items are compared one by one
_MOST_PLACES = 100_000


class Cells:
    """A function's closure as a collection."""

    def __init__(self, cells: Sequence[types.CellType]) -> None:
        self.cells = cells

    def __getitem__(self, index: int) -> Any:
        return self.cells[index].cell_contents

    def __setitem__(self, index: int, value: Any) -> None:
        self.cells[index].cell_contents = value


class Float(NamedTuple):
    """A number of a group of parameters that is an operand of the program."""

    group: dict[str, Any]
    key: str
    at: int | None  # within a tuple

    def read(self) -> Any:
        value = self.group[self.key]
        return value if self.at is None else value[self.at]


def is_plain(value: Any) -> bool:
    """True if a value alone decides what a step does, and can be compared."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(is_plain, value)))


def view_on_device(tensor: torch.Tensor) -> View | None:
    """The view of a tensor's values; None for one that is not on the device."""
    return tensor.view_of_arrays if isinstance(tensor, Tensor) else None


class Reach:
    """Everything that a step reaches at one time.

    Attributes:
        owners, keys, values, paths: the places of tensors and collections.
        tensors: each tensor once, in the order of places.
        places: the places of each tensor, by its index.
        floats: the numbers that are operands.
        structure: everything but the tensors that must be unchanged for a program to be valid.
        passive: values that do not affect a program, but that it may change.
        modules, optimizers: those met.
        objects: other objects met.
    """

    def __init__(self, step: Callable[..., Any], holders: Sequence[Any], names: Names) -> None:
        self._names = names
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

    def _start(self) -> None:
        self.owners: list[Any] = []
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.paths: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.places: dict[int, list[int]] = {}
        self.floats: list[Float] = []
        self.modules: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.objects: list[Any] = []
        self.copies: list[tuple[Any, Any]] = []
        self._plain: dict[int, tuple[Any, list[Any]]] = {}
        self._plain_paths: list[tuple[str, Any]] = []
        self._sized: list[Any] = []
        self._index: dict[int, int] = {}
        self._roots: dict[int, Any] = {}
        self._seen: dict[int, Any] = {}
        self.passive: list[tuple[str, Any]] = []
        self._is_passive = False

    # the walk

    def _visit(self, owner: Any, key: Any, path: str, value: Any) -> None:
        if self._is_passive:
            if is_plain(value):
                self.passive.append((path, value))
            elif isinstance(value, list):
                self.copies.append((value, value.copy()))
                self.passive += [(path, v) for v in value if is_plain(v)]
        elif isinstance(value, torch.Tensor):
            self._place(owner, key, path, value)
            if id(value) not in self._index:
                self._index[id(value)] = len(self.tensors)
                self.tensors.append(value)
                for hooks in hooks_of(value):
                    if hooks is not None:
                        self._hooks(f"{path}.hooks", hooks)
            self.places.setdefault(self._index[id(value)], []).append(len(self.values) - 1)
        elif is_plain(value):
            if owner is not self._roots:
                self._plain.setdefault(id(owner), (owner, []))[1].append(key)
                self._plain_paths.append((path, value))
        elif isinstance(value, dict | list | deque | tuple | set | frozenset):
            if owner is not self._roots:
                self._place(owner, key, path, value)
            self._collection(path, value)
        elif not isinstance(value, type | types.ModuleType):
            if owner is not self._roots:
                self._place(owner, key, path, value)
            self._object(path, value)

    def _place(self, owner: Any, key: Any, path: str, value: Any) -> None:
        if len(self.values) > _MOST_PLACES:
            raise UnsupportedInputError("a step", f"one that reaches over {_MOST_PLACES} tensors", "one with fewer")
        self.owners.append(owner)
        self.keys.append(key)
        self.values.append(value)
        self.paths.append(path)

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        return True

    def _collection(self, path: str, value: Any) -> None:
        if not self._is_new(value):
            return
        if not isinstance(value, tuple):
            self._sized.append(value)
            self.copies.append((value, value.copy()))
        if isinstance(value, dict):
            few = len(value) <= _MOST_ITEMS
            for i, (k, v) in enumerate(list(value.items())):
                if few or not is_plain(v):
                    self._visit(value, k, f"{path}[{k!r}]" if is_plain(k) else f"{path}[{i}]", v)
        elif isinstance(value, set | frozenset):
            for item in value:
                if not is_plain(item) and not isinstance(item, torch.Tensor):
                    self._object(path, item)
        else:
            few = len(value) <= _MOST_ITEMS
            for i, v in enumerate(list(value)):
                if few or not is_plain(v):
                    self._visit(value, i, f"{path}[{i}]", v)

    def _hooks(self, path: str, hooks: dict[int, Any]) -> None:
        """Hooks in their order: their keys are new numbers, also where the same hook is added again."""
        if self._is_new(hooks):
            self._sized.append(hooks)
            self.copies.append((hooks, hooks.copy()))
            for i, (key, hook) in enumerate(list(hooks.items())):
                self._visit(hooks, key, f"{path}[{i}]", hook)

    def _object(self, path: str, value: Any) -> None:
        if not self._is_new(value):
            return
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
            self._names.add_methods(type(value))
            self._attributes(path, value, _OF_MODULES)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
            self._names.add_methods(type(value))
            self._optimizer(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.MethodType):
            self._object(path, value.__func__)
            self._object(path, value.__self__)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(self._roots, path, path, part)
        elif not isinstance(value, type | types.ModuleType) and hasattr(value, "__dict__") and holds_state(type(value)):
            self.objects.append(value)
            self._names.add_methods(type(value))
            # the state of a schedule matters only if the step reads it: mostly the loop steps the schedule
            is_schedule = isinstance(value, torch.optim.lr_scheduler.LRScheduler)
            self._is_passive = is_schedule and "get_last_lr" not in self._names.known
            self._attributes(path, value, frozenset())
            self._is_passive = False

    def _attributes(self, path: str, value: Any, always: frozenset[str]) -> None:
        attributes = value.__dict__
        self.copies.append((attributes, attributes.copy()))
        for name, found in list(attributes.items()):
            if name in always or name in self._names.known:
                self._attribute(attributes, name, f"{path}.{name}", found)

    def _attribute(self, attributes: dict[str, Any], name: str, path: str, value: Any) -> None:
        if name in _OF_NAMES and isinstance(value, dict):  # never replaced, only searched
            self._collection(path.removesuffix(f".{name}"), value)
        elif name in _OF_HOOKS and isinstance(value, dict):
            self._hooks(path, value)
        else:
            self._visit(attributes, name, path, value)

    def _optimizer(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        attributes = optimizer.__dict__
        self.copies.append((attributes, attributes.copy()))
        groups = optimizer.param_groups
        self._place(attributes, "param_groups", f"{path}.param_groups", groups)
        self._sized.append(groups)
        self.copies.append((groups, groups.copy()))
        for i, group in enumerate(groups):
            self._place(groups, i, f"{path}.param_groups[{i}]", group)
            self._sized.append(group)
            self.copies.append((group, group.copy()))
            for name, value in group.items():
                self._setting(group, name, f"{path}.param_groups[{i}][{name!r}]", value)
        for name, value in list(attributes.items()):
            if name in _OF_HOOKS:
                self._hooks(f"{path}.{name}", value)
            elif name == "state" or (name in self._names.known and name not in _PASSED):
                self._visit(attributes, name, f"{path}.{name}", value)

    def _setting(self, group: dict[str, Any], name: str, path: str, value: Any) -> None:
        if type(value) is float:
            self.floats.append(Float(group, name, None))
        elif type(value) is tuple and any(type(v) is float for v in value):
            for i, v in enumerate(value):
                if type(v) is float:
                    self.floats.append(Float(group, name, i))
                else:
                    self._visit(value, i, f"{path}[{i}]", v)
        elif isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
            self.floats.append(Float(group, name, None))
        else:
            self._visit(group, name, path, value)

    def _function(self, path: str, fn: types.FunctionType) -> None:
        if fn.__closure__:
            cells = Cells(fn.__closure__)
            self._seen[id(cells)] = cells
            for i, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__, strict=True)):
                try:
                    found = cell.cell_contents
                except ValueError:  # not yet assigned
                    continue
                if self._is_new(cell):
                    self.copies.append((cells, (i, found)))
                    self._visit(cells, i, name, found)
        if is_library(fn.__module__):
            return
        self._names.add(fn)
        for part in (fn.__defaults__, fn.__kwdefaults__):
            if part:
                self._collection(f"{path}.defaults", part)
        for name in sorted(set(fn.__code__.co_names) | _inner_names(fn.__code__)):
            found = fn.__globals__.get(name)
            if found is not None and not isinstance(found, type | types.ModuleType):
                self._visit(fn.__globals__, name, name, found)
        wrapped = function_of(getattr(fn, "__wrapped__", None))
        if wrapped is not None:
            self._object(path, wrapped)

    # the findings

    def _finish(self) -> None:
        self._seen = {}
        self.sizes = [*map(len, self._sized)]
        self._getters: list[Any] = []
        self._watched: list[Any] = []
        for owner, keys in self._plain.values():
            self._getters.append(itemgetter(*keys) if len(keys) > 1 else itemgetter(keys[0]))
            self._watched.append(owner)
        self._saved = [*map(call, self._getters, self._watched)]
        self.views = [*map(view_on_device, self.tensors)]
        self.roots: list[Storage | None] = [None if v is None else v.storage.root for v in self.views]
        self.root_at = {id(root): i for i, root in enumerate(self.roots) if root is not None}
        self._sharers = Counter(map(id, self.roots))
        self._flags = [t.requires_grad for t in self.tensors]
        is_leaf = [t.is_leaf and (t.requires_grad or isinstance(t, torch.nn.Parameter)) for t in self.tensors]
        self.leaves = [*compress(self.tensors, is_leaf)]
        self._gradient_hooks = HooksOfTensors(self.tensors)
        indices = {id(t): i for i, t in enumerate(self.tensors)}
        self.structure = (
            tuple([(p, indices.get(id(v), _kind(v))) for p, v in zip(self.paths, self.values, strict=True)]),
            tuple(self.sizes),
            tuple([(path, type(value), value) for path, value in self._plain_paths]),
            tuple([(f.key, f.at) for f in self.floats]),
            tuple([type(o) for o in self.optimizers]),
        )

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
                all(map(is_, map(getitem, self.owners, self.keys), self.values))
                and [*map(len, self._sized)] == self.sizes
                and [*map(call, self._getters, self._watched)] == self._saved
                and all(map(is_, map(view_on_device, self.tensors), self.views))
                and [t.requires_grad for t in self.tensors] == self._flags
                and self._gradient_hooks.are_current()
            )
        except (LookupError, TypeError, ValueError):
            return False

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
            self._lies_at(index, view_on_device(value))

    def moved(self, index: int) -> None:
        """Takes note of a tensor's new place, if it lies alone there as it did before."""
        old, new = self.views[index], view_on_device(self.tensors[index])
        if old is None or new is None or _layout(old) != _layout(new):
            return
        if self._sharers[id(self.roots[index])] == 1 and id(new.storage.root) not in self.root_at:
            self._lies_at(index, new)

    def _lies_at(self, index: int, view: View | None) -> None:
        before = id(self.roots[index])
        self.root_at.pop(before, None)
        self.views[index] = view
        self.roots[index] = root = None if view is None else view.storage.root
        self.root_at[id(root)] = index
        self._sharers[before] -= 1
        self._sharers[id(root)] += 1

    def restore(self, only: set[int] | None = None) -> None:
        """Restores collections and attributes, all of them or some by `id`."""
        for holder, copy in self.copies:
            if only is not None and id(holder) not in only:
                continue
            if isinstance(holder, Cells):
                holder[copy[0]] = copy[1]
            elif isinstance(holder, dict):
                if len(holder) != len(copy) or any(holder.get(k, holder) is not v for k, v in copy.items()):
                    holder.clear()
                    holder.update(copy)
            elif isinstance(holder, list):
                holder[:] = copy
            elif isinstance(holder, set | deque):
                holder.clear()
                (holder.update if isinstance(holder, set) else holder.extend)(copy)


def _layout(view: View) -> tuple[Any, ...]:
    return view.storage.array.dtype, view.shape, view.strides(), view.offset


def _kind(value: Any) -> Any:
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


def _inner_names(code: types.CodeType) -> set[str]:
    inner: Iterator[types.CodeType] = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {name for c in inner for name in {*c.co_names, *_inner_names(c)}}


_OF_HOOKS = frozenset({
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
})  # fmt: skip
_OF_NAMES = frozenset({"_parameters", "_buffers", "_modules"})  # the items are attributes of a module
_OF_MODULES = _OF_NAMES | _OF_HOOKS | {"training"}
_PASSED = frozenset({"param_groups", "defaults", "state"})
