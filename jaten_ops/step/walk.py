"""The walk over everything that a step can reach.

It starts at the holders that the caller names and at what the step's code names: closures, globals, defaults,
attributes of `self`. It goes through modules, optimizers, other objects, classes and collections. Of objects it sees
the attributes whose names the code mentions: a counter which only the training loop reads is none of the step's.
"""

from __future__ import annotations

import functools
import io
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from ..arrays.attributes import attributes_of
from ..errors import UnsupportedInputError
from .code_names import (
    WRAPPERS,
    Names,
    function_of,
    globals_in,
    holds_state,
    is_library,
    is_special,
    is_users,
    slots_of,
)
from .gradient_hooks import hooks_of
from .places import Cells, ClassAttributes, Float, Slots, Variables, is_plain

_MOST_ITEMS = 64  # the largest collection whose plain items are compared one by one
_MOST_COMPARED = 4096  # the largest whose plain items are compared at all
_MOST_BYTES = 2**16  # of the largest array of NumPy that is compared
_MOST_PLACES = 100_000


class StepWalk:
    """A walk, and what it has found.

    Attributes:
        owners, keys, values, paths: the places of tensors and collections.
        tensors: each tensor once, in the order of places.
        places: the places of each tensor, by its index.
        floats: the numbers that are operands.
        passive: values that do not affect a program, but that it may change.
        modules, optimizers: those met.
        objects: other objects met.
        iterators: the paths of objects that give the next value each time, and cannot be compared.
        copies: what is restored after an error.
    """

    def __init__(self, names: Names) -> None:
        self._names = names

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
        self._counted: list[Any] = []  # attributes: with a new one, the walk is made again
        self._large: list[tuple[str, Any]] = []
        self._arrays: list[tuple[str, np.ndarray]] = []
        self._classes: set[type] = set()
        self.iterators: list[str] = []
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
                if isinstance(value, torch.nn.Parameter):
                    self._attributes(path, attributes_of(value), frozenset())
            self.places.setdefault(self._index[id(value)], []).append(len(self.values) - 1)
        elif is_plain(value):
            if owner is not self._roots:
                self._plain.setdefault(id(owner), (owner, []))[1].append(key)
                self._plain_paths.append((path, value))
        elif isinstance(value, dict | list | deque | tuple | set | frozenset):
            if owner is not self._roots:
                self._place(owner, key, path, value)
            self._collection(path, value)
        elif not isinstance(value, type | types.ModuleType) or is_users(value):
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
        if isinstance(value, set | frozenset):
            self._large.append((path, value))
            for item in value:
                if not is_plain(item) and not isinstance(item, torch.Tensor):
                    self._object(path, item)
            return
        few, skipped = len(value) <= _MOST_ITEMS, False
        for i, (k, v) in enumerate([*value.items()] if isinstance(value, dict) else [*enumerate(value)]):
            if not few and is_plain(v):
                skipped = True
            else:
                self._visit(value, k, f"{path}[{k!r}]" if is_plain(k) else f"{path}[{i}]", v)
        if skipped and len(value) <= _MOST_COMPARED and not isinstance(value, tuple):
            self._large.append((path, value))

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
            self._attributes(path, value.__dict__, _OF_MODULES)
            self._class(type(value))
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
            self._names.add_methods(type(value))
            self._optimizer(path, value)
            self._class(type(value))
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.ModuleType):
            self._variables(f"{path}.", vars(value), sorted(self._names.known))
        elif isinstance(value, types.MethodType):
            self._object(path, value.__func__)
            self._object(path, value.__self__)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(self._roots, path, path, part)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
                self._arrays.append((path, value))
        elif isinstance(value, Iterator) and is_library(type(value).__module__):
            if not isinstance(value, io.IOBase):
                self.iterators.append(path)
        elif holds_state(type(value)):
            self._state(path, value)

    def _state(self, path: str, value: Any) -> None:
        """An object that is neither torch's nor Python's own, or one of theirs that holds values of users."""
        self.objects.append(value)
        self._names.add_methods(type(value))
        # the state of a schedule matters only if the step reads it: mostly the loop steps the schedule
        is_schedule = isinstance(value, torch.optim.lr_scheduler.LRScheduler)
        self._is_passive = is_schedule and "get_last_lr" not in self._names.known
        if hasattr(value, "__dict__"):
            self._attributes(path, value.__dict__, _OF_WRAPPERS if isinstance(value, WRAPPERS) else frozenset())
        self._is_passive = False
        self._class(type(value))
        slots = Slots(value)
        for name in slots_of(type(value)):
            if name in self._names.known and hasattr(value, name):
                found = getattr(value, name)
                self.copies.append((slots, (name, found)))
                self._visit(slots, name, f"{path}.{name}", found)

    def _class(self, cls: type) -> None:
        """The attributes of a user's class and of its bases: methods, settings, defaults of objects."""
        for base in cls.__mro__:
            if is_users(base) and base not in self._classes:
                self._classes.add(base)
                self._counted.append(vars(base))
                owner = ClassAttributes(base)
                for name, found in list(vars(base).items()):
                    if name in self._names.known or is_special(name):
                        self._class_attribute(owner, name, f"{base.__qualname__}.{name}", found)

    def _class_attribute(self, owner: ClassAttributes, name: str, path: str, value: Any) -> None:
        fn = function_of(value)
        if fn is not None and fn is not value:
            self._object(path, fn)
        elif fn is not None or not (name.startswith("__") or hasattr(value, "__get__")):
            self.copies.append((owner, (name, value)))
            self._visit(owner, name, path, value)

    def _variables(self, path: str, variables: dict[str, Any], names: Iterable[str]) -> None:
        """Globals of a function, or of a module that the code names."""
        owner = Variables(variables)
        for name in names:
            if name in variables:
                self.copies.append((owner, (name, variables[name])))
                self._visit(variables, name, f"{path}{name}", variables[name])

    def _attributes(self, path: str, attributes: dict[str, Any], always: frozenset[str]) -> None:
        self._counted.append(attributes)
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
        self._counted.append(attributes)
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
        self._variables("", fn.__globals__, globals_in(fn.__code__))
        wrapped = function_of(getattr(fn, "__wrapped__", None))
        if wrapped is not None:
            self._object(path, wrapped)


_OF_HOOKS = frozenset({
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
})  # fmt: skip
_OF_NAMES = frozenset({"_parameters", "_buffers", "_modules"})  # the items are attributes of a module
_OF_MODULES = _OF_NAMES | _OF_HOOKS | {"training", "forward"}
_OF_WRAPPERS = frozenset({"data", "maps"})  # of UserDict, UserList and ChainMap
_PASSED = frozenset({"param_groups", "defaults", "state"})
