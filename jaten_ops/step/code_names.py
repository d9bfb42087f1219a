"""The names that a step's code mentions: everything that it can reach, found without running it."""

from __future__ import annotations

import argparse
import dis
import functools
import sys
import types
from collections import ChainMap, UserDict, UserList
from collections.abc import Iterator
from typing import Any

_LIBRARIES = frozenset({"torch", "jax", "jaxlib", "numpy", "jaten_ops", "pytest", "_pytest"}) | sys.stdlib_module_names
WRAPPERS = (UserDict, UserList, ChainMap)  # collections in an attribute
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace, *WRAPPERS)
_NOT_CALLED = frozenset({"__init__", "__new__", "__repr__", "__str__", "__reduce__", "__init_subclass__", "__del__"})
_LOOKED_INTO = ("torch.optim", "torch.amp", "torch.nn", "torch.utils")  # objects of these modules hold state of a step


def is_library(module: str | None) -> bool:
    """True if a module belongs to torch, JAX or Python, whose variables are no state of the step."""
    return (module or "").partition(".")[0] in _LIBRARIES - {"__main__"}


def holds_state(cls: type) -> bool:
    """True if the walk enters objects of a class: those of users, and some of torch's."""
    module = getattr(cls, "__module__", "") or ""
    return not is_library(module) or module.startswith(_LOOKED_INTO) or issubclass(cls, _NAMESPACES)


@functools.cache
def _is_installed(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def is_users(value: type | types.ModuleType) -> bool:
    """True if a class or module is the user's own: neither of a library nor of an installed package."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return not is_library(module) and not _is_installed(module or "")


def is_special(name: str) -> bool:
    """True for methods that code calls without their names, such as `__getitem__`, and a module's `forward`."""
    return name in _ALWAYS or (name.startswith("__") and name.endswith("__") and name not in _NOT_CALLED)


def slots_of(cls: type) -> Iterator[str]:
    """The names of the slots of a user's class."""
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


_BY_TEXT = frozenset({"getattr", "hasattr", "setattr", "attrgetter"})


def names_in(code: types.CodeType) -> Iterator[str]:
    """Attributes, globals and free variables that a function and those defined in it mention."""
    yield from code.co_names
    yield from code.co_freevars
    by_text = not _BY_TEXT.isdisjoint(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)
        elif by_text:
            yield from (c for c in (constant if isinstance(constant, tuple) else (constant,)) if isinstance(c, str))


@functools.lru_cache(4096)
def globals_in(code: types.CodeType) -> tuple[str, ...]:
    """The globals that a function, and those defined in it, read or write, in order. An attribute of a name is none."""
    found = {i.argval for i in dis.get_instructions(code) if "GLOBAL" in i.opname or i.opname == "LOAD_NAME"}
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return tuple(sorted(found.union(*map(globals_in, inner))))


def function_of(value: Any) -> types.FunctionType | None:
    """The Python function of a class attribute, such as a property or static method."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    return value if isinstance(value, types.FunctionType) else None


_ALWAYS = frozenset({"forward", "__call__"})
_BASES = frozenset({"torch.nn.modules.module", "torch.optim.optimizer"})  # these set attributes of all kinds


class Names:
    """The names in the code found so far; methods are added when an object with such a name is found."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self._read: set[int] = set()
        self._kept: list[Any] = []  # kept alive, so that no `id` is used again

    def add(self, fn: types.FunctionType) -> None:
        if id(fn.__code__) not in self._read:
            self._read.add(id(fn.__code__))
            self._kept.append(fn.__code__)
            self.known.update(names_in(fn.__code__))

    def add_methods(self, cls: type) -> None:
        """Adds the methods of a class that are called by a name."""
        for base in cls.__mro__:
            if base.__module__ in _BASES or base.__module__ == "builtins":
                continue
            for name, value in vars(base).items():
                if name in self.known or name in _ALWAYS:
                    fn = function_of(value)
                    if fn is not None:
                        self.add(fn)
