"""The results of a torch function, in any structure, taken apart into tensors for JAX and rebuilt from arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch.utils import _pytree

from jaten_ops.errors import UnsupportedInputError
from jaten_ops.tensor.operand_values import is_constant

_Taken = tuple[list[torch.Tensor], tuple[list[Any], Any]]
_TENSOR = object()


def taken_apart(result: Any) -> _Taken:
    """The tensors of a result; its other values, with markers in the tensors' places; and its structure."""
    try:
        leaves, structure = jax.tree.flatten(result)
        while any(_told_jax(leaf) for leaf in leaves):
            leaves, structure = jax.tree.flatten(result)
    except RecursionError as error:
        got = "an object with tensors that holds itself"
        raise UnsupportedInputError("a result of a torch function", got, "a tree of tensors") from error
    tensors = [_on_device(v) for v in leaves if isinstance(v, torch.Tensor)]
    return tensors, ([_TENSOR if isinstance(v, torch.Tensor) else v for v in leaves], structure)


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    if is_constant(tensor):
        return tensor.to("jax")
    if tensor.device.type != "jax":
        raise UnsupportedInputError("tensor", f"one on {tensor.device}", "one on jax; move it with .to('jax')")
    return tensor


def put_together(arrays: Sequence[Any], rest: list[Any], structure: Any) -> Any:
    each = iter(arrays)
    return jax.tree.unflatten(structure, [next(each) if v is _TENSOR else v for v in rest])


class _Context:
    """The static part of a torch structure, for JAX, which compares and hashes it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Context) and self.value == other.value

    def __hash__(self) -> int:
        return hash(repr(self.value))


def _told_jax(value: Any) -> bool:
    """Registers an object's class as a JAX pytree: one that torch has registered, a dataclass, or one with tensors."""
    kind = type(value)
    is_known = kind in _pytree.SUPPORTED_NODES
    if isinstance(value, torch.Tensor) or not (is_known or dataclasses.is_dataclass(kind) or _has_tensors(value)):
        return False
    if is_known:
        node = _pytree.SUPPORTED_NODES[kind]

        def flatten(value: Any) -> tuple[Any, Any]:
            children, context = node.flatten_fn(value)
            return children, _Context(context)

        _register(kind, flatten, lambda context, children: node.unflatten_fn(list(children), context.value))
    else:
        _register(kind, _fields_of, lambda context, children: _of_fields(kind, context, children))
    return True


def _has_tensors(value: Any, outer: tuple[int, ...] = ()) -> bool:
    """True for an object with tensors in its attributes, such as a cache of transformers."""
    if not _has_attributes(value) or id(value) in outer:
        return False
    inside = jax.tree.leaves(vars(value))
    return any(isinstance(x, torch.Tensor) or _has_tensors(x, (*outer, id(value))) for x in inside)


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, _OPAQUE)


_OPAQUE = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)


def _fields_of(value: Any) -> tuple[Any, Any]:
    """An object's attributes: those with arrays or tensors, and the others, which are part of the structure."""
    is_dataclass = dataclasses.is_dataclass(value)
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)} if is_dataclass else vars(value)
    held = {k: v for k, v in fields.items() if any(_is_array(x) for x in jax.tree.leaves(v))}
    return tuple(held.values()), _Context((tuple(held), {k: v for k, v in fields.items() if k not in held}))


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | torch.Tensor) or dataclasses.is_dataclass(value) or _has_tensors(value)


def _of_fields(kind: type, context: _Context, children: Sequence[Any]) -> Any:
    names, others = context.value
    made: Any = object.__new__(kind)
    for name, value in (*zip(names, children, strict=True), *others.items()):
        object.__setattr__(made, name, value)
    return made


def _register(kind: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]) -> None:
    with contextlib.suppress(ValueError):  # another thread has registered it
        jax.tree_util.register_pytree_node(kind, flatten, unflatten)
