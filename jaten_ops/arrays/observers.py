"""Observers of the tensors of the device that a thread uses: the capture of a training step, a trace of JAX's.

Mostly there is no observer, and a call only checks that `OBSERVERS` is empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import jax
import numpy as np
import torch

from ..xla import traced_constants


class Observer:
    """An observer of the operators, tensors and storages of one thread. Each method may be left as it is."""

    def met(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Called before an operator runs; returns the arguments to use."""
        return args, kwargs

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Called with the function that runs an operator; returns the one to call."""
        return handler

    def made(self, tensor: Any) -> None:
        """Called for a new tensor, when it has an array or a storage."""

    def written(self, storage: Any) -> None:
        """Called before a storage gets another array."""

    def read(self, array: Any) -> Any:
        """The number that an array of one element stands for; None if it is the array's own."""

    def values(self, array: Any) -> Any:
        """The values of an array of integers that JAX traces, as a NumPy array; None if the program computes them."""

    def backward_begins(self) -> None:
        """Called before a backward pass that accumulates gradients, which may be within another."""

    def backward_ends(self) -> None:
        """Called after such a pass, if it has raised nothing."""


OBSERVERS: dict[int, tuple[Observer, ...]] = {}
"""The active observers, the outermost first, by the thread that they observe."""


@contextlib.contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """For the length of a block, in this thread, an observer is active, beside those that are."""
    thread = get_ident()
    before = OBSERVERS.get(thread)
    OBSERVERS[thread] = (*(before or ()), observer)
    try:
        yield
    finally:
        if before is None:
            del OBSERVERS[thread]
        else:
            OBSERVERS[thread] = before


def observers() -> tuple[Observer, ...]:
    """The observers of this thread."""
    return OBSERVERS.get(get_ident(), ())


def is_in_program() -> bool:
    """True in functions that Dynamo captures or JAX traces."""
    return torch.compiler.is_compiling() or bool(observers())


def met(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with which an operator is to be run."""
    kwargs = kwargs or {}
    for observer in observers():
        args, kwargs = observer.met(func, args, kwargs)
    return args, kwargs


def around(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is to run an operator, for the one that runs it unobserved."""
    for observer in observers():
        handler = observer.around(handler)
    return handler


def made(tensor: Any) -> None:
    for observer in observers():
        observer.made(tensor)


def written(storage: Any) -> None:
    for observer in observers():
        observer.written(storage)


def backward_begins() -> None:
    for observer in observers():
        observer.backward_begins()


def backward_ends() -> None:
    for observer in observers():
        observer.backward_ends()


def read_number(array: Any) -> Any:
    """The number that an array of one element stands for."""
    for observer in observers():
        found = observer.read(array)
        if found is not None:
            return found
    return traced_constants.number_in(array)


def known_values(array: Any) -> np.ndarray:
    """The values of an array of integers or truth values, also of one that JAX traces, if they are known before.

    Raises:
        jax.errors.TracerArrayConversionError: they are not.
    """
    if isinstance(array, jax.core.Tracer):
        for observer in observers():
            found: np.ndarray | None = observer.values(array)
            if found is not None:
                return found
    return np.asarray(array)
