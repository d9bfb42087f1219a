"""Functions as text and back, for operators that call them: an operator's argument may be a string, not a function.

A function that a module has under its name is that name. A lambda, or a function inside another, is its code, which is
kept, and what it closes over, written out; so a new one of the same code is the same text, and nothing of it is kept.
One that closes over other values, such as arrays, is a number, which is known for as long as the function is.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import secrets
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedInputError

Name = Any
"""A function's name: a string, a number, or a tuple of "code" or "partial" and what it is made of; a literal."""

_lock = threading.Lock()
_numbers = itertools.count(secrets.randbits(48))  # others than another process has, as keys are parts of caches' keys
_numbered: weakref.WeakValueDictionary[int, Callable[..., Any]] = weakref.WeakValueDictionary()
_without_weak_references: dict[int, Callable[..., Any]] = {}
_labels: dict[tuple[types.CodeType, int], str] = {}  # by code and globals, which the next keeps
_codes: dict[str, tuple[types.CodeType, dict[str, Any]]] = {}

_NUMBERS = {float: "float", complex: "complex"}  # whose infinities are no literals


def member_named(name: str) -> Any:
    """The value that a module has under a name, as in "jax.numpy:sin"; None if there is nothing."""
    module, _, qualname = name.partition(":")
    return functools.reduce(
        lambda found, part: getattr(found, part, None), qualname.split("."), sys.modules.get(module)
    )


def name_of_type(cls: type) -> str:
    """A class in that form."""
    return f"{cls.__module__}:{cls.__qualname__}"


def literal_of(fn: Callable[..., Any]) -> Name:
    """The name of a function, a literal of Python."""
    try:
        return _written(fn)
    except (TypeError, ValueError, RecursionError):  # a value that may be written to, an empty cell, or itself
        number = next(_numbers)
    try:
        _numbered[number] = fn
    except TypeError:  # no weak references to it
        _without_weak_references[number] = fn
    return number


def function_named(name: Name) -> Callable[..., Any]:
    """The function of a name.

    Raises:
        UnsupportedInputError: there is none in this program, or none any more.
    """
    if isinstance(name, int):
        found = _numbered.get(name, _without_weak_references.get(name))
        return found if found is not None else _refuse("a function that is gone", "one that the program keeps")
    if isinstance(name, str):
        found = member_named(name)
        module = name.partition(":")[0]
        return found if found is not None else _refuse(name, f"a program that has imported {module}")
    if name[0] == "partial":
        _, fn, args, kwargs = name
        return functools.partial(function_named(fn), *map(_read, args), **{k: _read(v) for k, v in kwargs})
    _, label, closure, defaults, keyword_defaults = name
    if label not in _codes:
        where, line, _ = label.rsplit(":", 2)
        _refuse(
            f"{where} (line {line}), which this program does not have",
            "a function that a module has under its name, other than __main__: move it to one that is imported here,"
            " and export the program again",
        )
    code, scope = _codes[label]
    cells = tuple([types.CellType(_read(value)) for value in closure])
    fn = types.FunctionType(code, scope, code.co_name, None if defaults is None else _read(defaults), cells)
    fn.__kwdefaults__ = {k: _read(v) for k, v in keyword_defaults} or None
    return fn


def _refuse(got: str, expected: str) -> Any:
    raise UnsupportedInputError("call_jax", f"a call of the function {got}", expected)


def _written(value: Any) -> Name:
    """A function as its name; TypeError or ValueError if it has none but a number."""
    if isinstance(value, types.FunctionType) and not _has_own_name(value):
        closure = tuple([_value(cell.cell_contents) for cell in value.__closure__ or ()])
        defaults = None if value.__defaults__ is None else _value(value.__defaults__)
        keyword_defaults = tuple([(k, _value(v)) for k, v in (value.__kwdefaults__ or {}).items()])
        return "code", _label(value), closure, defaults, keyword_defaults
    if type(value) is functools.partial:
        kwargs = tuple([(k, _value(v)) for k, v in value.keywords.items()])
        return "partial", _written(value.func), tuple(map(_value, value.args)), kwargs
    if _has_own_name(value):
        return f"{value.__module__}:{value.__qualname__}"
    raise TypeError


def _has_own_name(value: Any) -> bool:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return module not in (None, "__main__") and name is not None and member_named(f"{module}:{name}") is value


def _value(value: Any) -> Any:
    """A value that a function closes over, as a literal: the kind, and what `_read` makes it of."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return "value", value
    if kind in _NUMBERS:
        return _NUMBERS[kind], repr(value)
    if kind is tuple:
        return "tuple", tuple(map(_value, value))
    if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
        return "module", value.__name__
    return "function", _written(value)  # or a class, or another object of a module


def _read(written: Any) -> Any:
    kind, value = written
    if kind == "tuple":
        return tuple(map(_read, value))
    readers: dict[str, Callable[[Any], Any]] = {
        "float": float, "complex": complex, "module": sys.modules.__getitem__, "function": function_named,
    }  # fmt: skip
    return readers[kind](value) if kind in readers else value


def _label(fn: types.FunctionType) -> str:
    """A name for a function's code in its module, equal in other processes; the code is kept."""
    known = _labels.get((fn.__code__, id(fn.__globals__)))
    if known is not None:
        return known
    code, scope = fn.__code__, fn.__globals__
    digest = hashlib.blake2s(repr(_content(code)).encode(), digest_size=8).hexdigest()
    label = f"{scope.get('__name__')}:{code.co_qualname}:{code.co_firstlineno}:{digest}"
    with _lock:
        for again in itertools.count(1):
            if _codes.setdefault(label, (code, scope))[1] is scope:
                break
            label = f"{label.partition('~')[0]}~{again}"  # of a module of the same name, as when cells are run by exec
        _labels[code, id(scope)] = label
    return label


def _content(code: types.CodeType) -> Any:
    """The instructions and constants of a code, in values that are printed alike in all processes."""
    constants = [_content(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags


def _constant(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else (type(value).__name__, repr(value))
