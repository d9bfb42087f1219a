"""The overrides that are active: those that are installed, and those of the `with` blocks that a context is in.

A context is one of `contextvars`: each thread has its own, and each task of asyncio a copy of the one in which it was
made. The state is tuples that are never changed, only replaced, so that threads need no lock to read it.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol


class HasTarget(Protocol):
    """An override: `target` is the overload that it is for."""

    @property
    def target(self) -> str: ...


Overrides = tuple[HasTarget, ...]

_installed: Overrides = ()
_entered: ContextVar[Overrides] = ContextVar("entered", default=())
_suspended: ContextVar[frozenset[str] | None] = ContextVar("suspended", default=frozenset())  # None: all targets
_made = False

_capturing: ContextVar[bool] = ContextVar("capturing", default=False)

_numbers = itertools.count()
_NUMBERED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

AT_FIRST: list[Callable[[], None]] = []
"""Functions that are called, once, before the first override is made."""


def note_first() -> None:
    """Called when an override is made: until the first nothing in this process looks for one."""
    global _made
    _made = True
    while AT_FIRST:
        AT_FIRST.pop()()


def were_made() -> bool:
    """True if there has been an override in this process."""
    return _made


def active() -> Overrides:
    """All that are active here, outermost first."""
    entered = _entered.get()
    return (*_installed, *entered) if entered else _installed


def of_target(target: str) -> Overrides:
    """Overrides for a target, innermost first; none while it is suspended."""
    suspended = _suspended.get()
    if suspended is None or target in suspended:
        return ()
    return tuple([rule for rule in reversed(active()) if rule.target == target])


def add_installed(rule: HasTarget) -> None:
    """Adds one as the innermost of the installed."""
    global _installed
    _installed = (*_installed, rule)


def remove_installed(rule: HasTarget) -> bool:
    """Takes an installed one away; False if there is none."""
    global _installed
    before = _installed
    _installed = tuple([other for other in before if other is not rule])
    return _installed != before


def enter(rules: Sequence[HasTarget]) -> None:
    """Adds rules as the innermost of this context."""
    _entered.set((*_entered.get(), *rules))


def leave(rule: HasTarget) -> None:
    """Takes away the innermost entry of a rule in this context."""
    entered = _entered.get()
    last = max(i for i, other in enumerate(entered) if other is rule)
    _entered.set((*entered[:last], *entered[last + 1 :]))


@contextlib.contextmanager
def suspended(*targets: str) -> Iterator[None]:
    """A context in which these overloads, or all if none is named, are what they are without overrides."""
    before = _suspended.get()
    token = _suspended.set(None if before is None or not targets else before | set(targets))
    try:
        yield
    finally:
        _suspended.reset(token)


def numbered(rule: HasTarget) -> int:
    """A new number by which graphs name a rule; it is never used again."""
    number = next(_numbers)
    _NUMBERED[number] = rule
    return number


def by_number(number: int) -> HasTarget:
    """The rule of a number."""
    return _NUMBERED[number]  # type: ignore[no-any-return]  # a weak dictionary has values of any type


def entered_in_graph(number: int) -> None:
    """In a program, the begin of a `with` block: it has an effect while the program is captured."""
    if is_capturing():
        enter([by_number(number)])


def left_in_graph(number: int) -> None:
    """Its end."""
    if is_capturing():
        leave(by_number(number))


def is_capturing() -> bool:
    """True while jaten captures a program in this context."""
    return _capturing.get()


@contextlib.contextmanager
def capturing(rules: Sequence[HasTarget]) -> Iterator[None]:
    """A context in which jaten captures a program, for which these are the innermost."""
    tokens = _capturing.set(True), _entered.set((*_entered.get(), *rules))
    try:
        yield
    finally:
        _capturing.reset(tokens[0])
        _entered.reset(tokens[1])
