"""JAX functions that torch programs call: one torch operator for all, which finds its function by a key.

The key is a string, as operators take them, so that it stands in graphs and exported programs. It holds the function's
name, or a number for one that no module has under its name, and the structure of the call's arguments.
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch

from ..arrays import bridge
from ..errors import UnsupportedInputError
from . import user_ops

_HELD = 1024
"""The number of functions without a name in a module that are kept: those that came last."""

_lock = threading.Lock()
_numbers = itertools.count()
_held: collections.OrderedDict[str, Callable[..., Any]] = collections.OrderedDict()
_numbered: dict[Any, str] = {}  # by code and closure
_keys: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, str]] = weakref.WeakKeyDictionary()
_structures: dict[tuple[str, Any], str] = {}
fillers = types.SimpleNamespace()  # an object: Dynamo guards only the attributes that it has read, but all of a dict


_TENSOR = ("tensor",)


def structure_and_values(value: Any, tensors: list[torch.Tensor], numbers: list[Any]) -> tuple[Any, ...]:
    """The structure of an argument in nested tuples; its tensors, and the numbers that are traced, go to the lists.

    Raises:
        UnsupportedInputError: a value of another class.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TENSOR
    if value is None or isinstance(value, bool | int | str):
        return (type(value).__name__, value)
    if isinstance(value, float | complex):
        numbers.append(value)
        return ("number",)
    if isinstance(value, tuple | list):
        parts = tuple([structure_and_values(v, tensors, numbers) for v in value])
        if type(value) is tuple or type(value) is list:
            return (type(value).__name__, parts)
        if hasattr(value, "_fields"):
            return ("class", f"{type(value).__module__}:{type(value).__qualname__}", parts)
    if type(value) is dict:
        return ("dict", tuple([(k, structure_and_values(v, tensors, numbers)) for k, v in value.items()]))
    raise UnsupportedInputError(
        "an argument of call_jax",
        type(value).__name__,
        "tensors, numbers, strings, None, and lists, tuples, named tuples and dicts of them; close over other values",
    )


def _rebuilt(structure: tuple[Any, ...], tensors: Iterator[Any], numbers: Iterator[Any]) -> Any:
    kind, *rest = structure
    if kind == "tensor":
        return next(tensors)
    if kind == "number":
        return next(numbers)
    if kind == "dict":
        return {k: _rebuilt(v, tensors, numbers) for k, v in rest[0]}
    if kind in ("tuple", "list", "class"):
        parts = [_rebuilt(v, tensors, numbers) for v in rest[-1]]
        return parts if kind == "list" else tuple(parts) if kind == "tuple" else _named(rest[0])(*parts)
    return rest[0]


def _named(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return functools.reduce(
        lambda found, part: getattr(found, part, None), qualname.split("."), sys.modules.get(module)
    )


def _identity(value: Any) -> Any:
    """Equal for two functions only if they compute the same; TypeError if that cannot be told."""
    if isinstance(value, types.FunctionType):
        closure = tuple([_identity(cell.cell_contents) for cell in value.__closure__ or ()])
        defaults = _identity((value.__defaults__, tuple((value.__kwdefaults__ or {}).items())))
        return value.__code__, id(value.__globals__), closure, defaults
    if isinstance(value, functools.partial):
        return functools.partial, _identity(value.func), _identity(value.args), _identity(tuple(value.keywords.items()))
    if isinstance(value, tuple):
        return type(value), tuple(map(_identity, value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | type):
        return type(value), repr(value)  # apart: 1 and True, 0.0 and -0.0
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        return value
    if callable(value) and getattr(value, "__module__", None) and _named(_name(value)) is value:
        return _name(value)
    raise TypeError


def _name(fn: Any) -> str:
    return f"{fn.__module__}:{getattr(fn, '__qualname__', '')}"


def _base(fn: Callable[..., Any]) -> str:
    """The part of a key that stands for the function."""
    if getattr(fn, "__module__", None) not in (None, "__main__") and _named(_name(fn)) is fn:
        return _name(fn)
    try:
        identity = _identity(fn)
    except (TypeError, ValueError):  # a value that may be written to, or an empty cell
        identity = None
    with _lock:
        name = (_numbered.get(identity) if identity is not None else None) or f"{next(_numbers)}"
        _held[name] = _held.pop(name, fn)
        if identity is not None:
            _numbered[identity] = name
        while len(_held) > _HELD:
            gone, _ = _held.popitem(last=False)
            for own in [i for i, n in _numbered.items() if n == gone]:
                del _numbered[own]
    return name


def call_key(fn: Callable[..., Any], structure: tuple[Any, ...]) -> str:
    """The key of a call of a function, with the structures of its arguments and of its named ones."""
    try:
        known = _keys.setdefault(fn, {})
    except TypeError:  # no weak references to it
        return f"{_base(fn)}|{structure!r}"
    found = known.get(structure)
    if found is None:
        found = known[structure] = f"{_base(fn)}|{structure!r}"
    return found


def _function(base: str) -> Callable[..., Any]:
    fn = _named(base) if ":" in base else _held.get(base)
    if fn is None:
        remedy = (
            f"a program that has imported {base.partition(':')[0]}"
            if ":" in base
            else "a function that is still known: pass the same one, or one that a module has under its name"
        )
        raise UnsupportedInputError("call_jax", f"a call of the function {base}", remedy)
    return fn


def _kernel(operands: Any, numbers: Any, key: str) -> Any:
    base, _, text = key.partition("|")
    taken, named = ast.literal_eval(text)
    arrays, scalars = iter(operands), iter(numbers or ())
    args = [_rebuilt(v, arrays, scalars) for v in taken]
    kwargs = {k: _rebuilt(v, arrays, scalars) for k, v in named}
    leaves, structure = jax.tree.flatten(_function(base)(*args, **kwargs))
    filler = _filler(jax.tree.unflatten(structure, range(len(leaves))))
    sizes = tuple([(tuple(a.shape), bridge.TORCH_DTYPES[np.dtype(a.dtype)]) for a in operands])
    ranks = tuple([(len(a.shape), bridge.TORCH_DTYPES[np.dtype(a.dtype)]) for a in operands])
    _structures[key, sizes] = _structures[key, ranks] = filler
    return leaves


user_ops.op("jaten_call::call(Tensor[] operands, Scalar[]? numbers, str key) -> Tensor[]", differentiable=["operands"])(
    _kernel
)


def structure_of_results(key: str, kinds: tuple[Any, ...]) -> str:
    """The name of the function that rebuilds the results, as traced for operands of these shapes, or ranks, and dtypes.

    `fillers` has it.
    """
    return _structures[key, kinds]


_sources: dict[Any, str] = {}


def _filler(template: Any) -> str:
    """The name of a generated function that puts results into a structure, in the places of their indices.

    Dynamo cannot trace JAX's pytrees.
    """
    scope: dict[str, Any] = {}

    def source(value: Any) -> str:
        if value is None or type(value) is int:
            return "None" if value is None else f"results[{value}]"
        if type(value) is tuple:
            return f"({''.join(f'{source(v)}, ' for v in value)})"
        if type(value) is list:
            return f"[{', '.join(map(source, value))}]"
        if type(value) is dict and all(type(key) in (str, int) for key in value):
            return f"{{{', '.join(f'{key!r}: {source(v)}' for key, v in value.items())}}}"
        name = f"part_{len(scope)}"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            scope[name] = type(value)
            return f"{name}({', '.join(map(source, value))})"
        scope[name] = lambda results: jax.tree.map(lambda number: results[number], value)
        return f"{name}(results)"

    text = source(template)
    same = text, tuple(scope.values())  # one function for all results of a structure
    if same not in _sources:
        name = f"fill_{next(_numbers)}"
        exec(compile(f"def {name}(results):\n    return {text}\n", __file__, "exec"), scope)  # our own text
        setattr(fillers, name, scope[name])
        _sources[same] = name
    return _sources[same]


for _fn in (call_key, structure_of_results):
    # as torch.compiler.assume_constant_result, which would import Dynamo
    setattr(_fn, "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute
