"""JAX functions that torch programs call: one torch operator for all, which finds its function by a key.

The key is a string, as operators take them, so that it stands in graphs and exported programs. It is a literal: the
function's name (see `function_names`), and the structure of the call's arguments.
"""

from __future__ import annotations

import ast
import contextlib
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch

from .. import registry
from ..arrays import bridge
from ..errors import UnsupportedInputError
from . import define, function_names, user_ops
from .executor import Executor

_KEPT = 4096
"""The number of keys whose results' structure is kept: those that came last."""

_NAME = "jaten_call::call"
_TENSOR = ("tensor",)

_of_function: dict[int, tuple[weakref.ref[Any], dict[Any, str]]] = {}  # by id: faster than a WeakKeyDictionary
_functions: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()
_in_graphs: dict[str, Callable[..., Any]] = {}


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
            return ("class", function_names.name_of_type(type(value)), parts)
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
        if kind == "class":
            return function_names.member_named(rest[0])(*parts)
        return parts if kind == "list" else tuple(parts)
    return rest[0]


def call_key(fn: Callable[..., Any], structure: tuple[Any, ...]) -> str:
    """The key of a call of a function, with the structures of its arguments and of its named ones."""
    known = _of_function.get(id(fn))
    if known is None or known[0]() is not fn:
        try:
            known = weakref.ref(fn, _forgetting(id(fn))), {}
        except TypeError:  # no weak references to it
            return _key(fn, structure)
        _of_function[id(fn)] = known
    found = known[1].get(structure)
    if found is None:
        found = known[1][structure] = _key(fn, structure)
    return found


def _forgetting(place: int) -> Callable[[Any], None]:
    def forget(dead: Any) -> None:
        if place in _of_function and _of_function[place][0] is dead:
            del _of_function[place]

    return forget


def _key(fn: Callable[..., Any], structure: tuple[Any, ...]) -> str:
    name = function_names.literal_of(fn)
    key = repr((name, structure))
    if isinstance(name, int):
        with contextlib.suppress(TypeError):
            _functions[key] = fn
    return key


def key_in_graph(fn: Callable[..., Any], structure: tuple[Any, ...]) -> str:
    """The key of a call that is captured in a graph, which may outlive the function: it is kept."""
    key = call_key(fn, structure)
    _keep_for_graph(key)
    return key


def has_state(fn: Any) -> bool:
    """True for a function with values that another one of the same code may not have."""
    return isinstance(fn, types.FunctionType) and any((fn.__closure__, fn.__defaults__, fn.__kwdefaults__))


class _Held(str):
    """A key that keeps its function alive."""

    __slots__ = ("fn",)
    fn: Callable[..., Any]


def _held(key: str) -> str:
    fn = _functions.get(key)
    if fn is None:
        return key
    held = _Held(key)
    held.fn = fn
    return held


def _keep_for_graph(key: str) -> None:
    fn = _functions.get(key)
    if fn is not None:
        _in_graphs[key] = fn


define.KEEPERS["jaten_call"] = define.Keeper(_held, _keep_for_graph)


def _called(operands: Sequence[Any], numbers: Sequence[Any] | None, key: str) -> Any:
    name, (taken, named) = ast.literal_eval(key)
    arrays, scalars = iter(operands), iter(numbers or ())
    args = [_rebuilt(v, arrays, scalars) for v in taken]
    kwargs = {k: _rebuilt(v, arrays, scalars) for k, v in named}
    return function_names.function_named(name)(*args, **kwargs)


def _kernel(operands: Any, numbers: Any, key: str) -> Any:
    leaves, structure = jax.tree.flatten(_called(operands, numbers, key))
    _note(key, operands, _filler(jax.tree.unflatten(structure, range(len(leaves)))))
    return leaves


user_ops.op(f"{_NAME}(Tensor[] operands, Scalar[]? numbers, str key) -> Tensor[]", differentiable=["operands"])(_kernel)
CALL = torch.ops.jaten_call.call.default


FILLERS: dict[str, Callable[..., Any] | None] = {}
"""For each key the function that puts the results into their structure; None if that depends on the shapes."""

_of_shapes: dict[tuple[str, Any], Callable[..., Any]] = {}
fillers = types.SimpleNamespace()  # an object: Dynamo guards only the attributes that it has read, but all of a dict


def _note(key: str, operands: Sequence[Any], filler: Callable[..., Any]) -> None:
    dtypes = [bridge.TORCH_DTYPES[np.dtype(a.dtype)] for a in operands]
    for sizes in ([tuple(a.shape) for a in operands], [len(a.shape) for a in operands]):
        _remember(_of_shapes, (key, tuple(zip(sizes, dtypes, strict=True))), filler)
    _remember(FILLERS, key, filler if FILLERS.get(key, filler) is filler else None)


def _remember(table: dict[Any, Any], key: Any, value: Any) -> None:
    table[key] = value
    while len(table) > _KEPT:
        table.pop(next(iter(table)), None)


def filler_of(key: str, kinds: tuple[Any, ...]) -> Callable[..., Any]:
    """The function that rebuilds the results, as traced for operands of these shapes, or ranks, and dtypes."""
    found = _of_shapes.get((key, kinds))
    if found is None:  # no longer known: it is traced again
        shapes = [(2,) * sizes if isinstance(sizes, int) else sizes for sizes, _ in kinds]
        operands = [torch.empty(s, dtype=d, device="meta") for s, (_, d) in zip(shapes, kinds, strict=True)]
        Executor(registry.SPECS[_NAME], registry.KERNELS[_NAME], None).fake(operands, [1.0] * key.count("number"), key)
        found = _of_shapes[key, tuple([(tuple(t.shape), t.dtype) for t in operands])]
    return found


def structure_of_results(key: str, kinds: tuple[Any, ...]) -> str:
    """The name of that function in `fillers`."""
    return filler_of(key, kinds).__name__


_sources: dict[Any, Callable[..., Any]] = {}


def _filler(template: Any) -> Callable[..., Any]:
    """A generated function that puts results into a structure, in the places of their indices.

    Dynamo cannot trace JAX's pytrees.
    """
    scope: dict[str, Any] = {}
    kinds: list[Any] = []

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
            kinds.append(type(value))
            scope[name] = type(value)
            return f"{name}({', '.join(map(source, value))})"
        kinds.append(jax.tree.structure(value))
        scope[name] = lambda results: jax.tree.map(lambda number: results[number], value)
        return f"{name}(results)"

    text = source(template)
    same = text, tuple(kinds)  # one function for all results of a structure
    if same not in _sources:
        name = f"fill_{len(_sources)}"
        exec(compile(f"def {name}(results):\n    return {text}\n", __file__, "exec"), scope)  # our own text
        setattr(fillers, name, scope[name])
        _sources[same] = scope[name]
    return _sources[same]


for _fn in (has_state, key_in_graph, structure_of_results):
    # as torch.compiler.assume_constant_result, which would import Dynamo
    setattr(_fn, "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute
