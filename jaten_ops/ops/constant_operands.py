"""Calls that read a value in a program that JAX traces, where it depends on constants alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.utils._pytree import tree_map

from ..xla.traced_constants import constant_value

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Attempt(threading.local):
    """A thread's attempt to make a call anew, which it does not make twice."""

    is_made = False


_ATTEMPT = _Attempt()


def with_values(
    args: tuple[Any, ...], kwargs: dict[str, Any], unwrap: Callable[[Any], Any], wrap: Callable[[Any], Any]
) -> Arguments | None:
    """The arguments of a call that has read a value, for another attempt.

    Args:
        args, kwargs: the arguments.
        unwrap: a tensor to its array.
        wrap: an array to a new tensor.

    Returns:
        The arguments, with values for tensors that depend on constants alone; None if no tensor has values.
    """
    if _ATTEMPT.is_made:
        return None
    has_values = False

    def with_value(value: Any) -> Any:
        nonlocal has_values
        if not isinstance(value, torch.Tensor):
            return value
        array = unwrap(value)
        known = constant_value(array)
        has_values = has_values or known is not None
        return value if known is None or known is array else wrap(known)

    args, kwargs = tree_map(with_value, (args, kwargs))
    return (args, kwargs) if has_values else None


def computed_now(call: Callable[..., Any], arguments: Arguments) -> Any:
    """Makes a call such that JAX computes at once what depends on values alone, and traces the rest."""
    _ATTEMPT.is_made = True
    try:
        with jax.ensure_compile_time_eval():
            return call(*arguments[0], **arguments[1])
    finally:
        _ATTEMPT.is_made = False
