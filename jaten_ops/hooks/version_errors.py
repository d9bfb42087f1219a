"""Errors on use of a feature that is off, because torch or JAX has moved an attribute that it needs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..errors import UnsupportedVersionError

IsUse = Callable[[tuple[Any, ...], dict[str, Any]], bool]
"""A predicate on the arguments of a call: True if it uses a feature."""


def refusing(function: Callable[..., Any], name: str, moved: str, reason: str, is_use: IsUse) -> Callable[..., Any]:
    """A function that raises UnsupportedVersionError for uses of a feature, and is otherwise the one given.

    Args:
        function: what is called for everything else.
        name: its own name, as "torch.utils:swap_tensors".
        moved: the attribute that the feature needs.
        reason: what is wrong with it, as "is not there".
        is_use: says which calls use the feature.
    """
    package = moved.partition(".")[0].partition(":")[0]
    version = getattr(sys.modules[package], "__version__", "") if package in sys.modules else ""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_use(args, kwargs):
            raise UnsupportedVersionError(name.replace(":", "."), f"{package} {version}", moved, reason)
        return function(*args, **kwargs)

    return call


def always(_args: Any, _kwargs: Any) -> bool:
    """True: every call is a use."""
    return True


def on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a call that names the device `jax` or has an argument on it: a tensor, storage, module or program."""
    return any(map(_is_there, tree_leaves((args, kwargs))))


def for_a_subclass(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a call of `__new__` for a subclass of torch's parameters, with an argument on the device."""
    return args[0] is not torch.nn.Parameter and on_device(args, kwargs)


def scripted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a method of a scripted module that is on the device or moves there."""
    return isinstance(args[0], torch.jit.ScriptModule) and on_device(args, kwargs)


def reaches_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a call with tensors that are on the device, or were computed from parameters on it."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    waiting: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if _is_there(getattr(node, "variable", None)):
            return True
        new = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= new
        waiting += new
    return any(map(_is_there, tensors))


def _is_there(value: Any) -> bool:
    if isinstance(value, str):
        return value == "jax" or value.startswith("jax:")
    if isinstance(value, torch.device):
        return value.type == "jax"
    if isinstance(value, torch.nn.Module):
        return any(t.device.type == "jax" for t in (*value.parameters(), *value.buffers()))
    if isinstance(value, torch.export.ExportedProgram):
        return any(map(_is_there, (*value.state_dict.values(), *tree_leaves(value.example_inputs))))
    return isinstance(value, torch.Tensor | torch.UntypedStorage) and value.device.type == "jax"
