"""The operations of a program whose forms are measured before one is chosen (`autotune`): a setting of each program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal, cast, get_args

from ..errors import UnsupportedInputError

AutotuneMode = Literal["off", "expensive", "all"]
MODES: tuple[str, ...] = get_args(AutotuneMode)
ENVIRONMENT = "JATEN_AUTOTUNE"

EXPENSIVE = 4_000_000
"""Multiplications of an expensive operation, which take a tenth of a millisecond or more."""

_asked: ContextVar[AutotuneMode | None] = ContextVar("jaten_autotune", default=None)


def checked(mode: Any, where: str) -> AutotuneMode:
    """A mode, as a user gives it.

    Raises:
        UnsupportedInputError: it is none of them.
    """
    if mode not in MODES:
        raise UnsupportedInputError(where, repr(mode), ", ".join(MODES))
    return cast(AutotuneMode, mode)


def asked_mode() -> AutotuneMode:
    """The operations that are measured in a program that this thread compiles."""
    asked = _asked.get()
    return checked(os.environ.get(ENVIRONMENT) or "off", ENVIRONMENT) if asked is None else asked


@contextlib.contextmanager
def using(asked: AutotuneMode | None) -> Iterator[None]:
    """A context in which programs are compiled in a mode; None for the one that holds already."""
    token = _asked.set(asked_mode() if asked is None else asked)
    try:
        yield
    finally:
        _asked.reset(token)


def wants(multiplications: float) -> bool:
    """True if an operation of so many multiplications is to be measured."""
    asked = asked_mode()
    return asked == "all" or (asked == "expensive" and multiplications >= EXPENSIVE)
