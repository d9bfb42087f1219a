"""jaten's own functions under `jax.jit`: recognized by name when they are compiled, and cleared together."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax

pxla: Any
try:
    # private: see `_drop_pruned`
    from jax._src.interpreters import pxla
except ImportError:  # pragma: no cover  # a JAX that has moved it: executables may stay
    pxla = None

PREFIX = "jaten_"
"""Prefix of the names of jaten's own functions, by which their programs are told from those of users."""

_ALL: weakref.WeakSet[Any] = weakref.WeakSet()


def jitted(fn: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` of a function of jaten's. It runs on the device of its arguments, also of those that it does not read.

    Args:
        fn: the function.
        options: those of `jax.jit`.
    """

    made = jax.jit(fn if fn.__name__.startswith(PREFIX) else _named(fn), keep_unused=True, **options)
    _ALL.add(made)
    return made


def _named(fn: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any) -> Any:
        return fn(*args)

    program.__name__ = PREFIX + fn.__name__.strip("_<>")
    return program


def clear_traces() -> None:
    """Clears the traces and executables of jaten's functions that are not in use, and nothing of the user's."""
    for made in list(_ALL):
        made.clear_cache()
    _drop_pruned()


def _drop_pruned() -> None:
    """Empties the table of programs without the arguments that they do not read; executables stay as they are.

    JAX 0.12 keeps a program that has all its arguments in it as its own entry, which so never goes, nor its executable.
    """
    clear = getattr(getattr(pxla, "_dce_jaxpr", None), "cache_clear", None)
    if clear is not None:
        clear()
