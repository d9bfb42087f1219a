"""Replacing attributes of torch and JAX, each with a guard and a reason.

`replace` is the one way by which jaten puts a function of its own in the place of another's; what is replaced is listed
in `patches`. Where a torch or JAX does not have the attribute, or has it with other parameters, it is left as it is.
The feature is off then: a line of the log says so, and a use of it raises UnsupportedVersionError.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .version_errors import IsUse, on_device, refusing

_log = logging.getLogger("jaten_ops")


@dataclass(frozen=True)
class Patch:
    """An attribute of torch or JAX that jaten replaces, or a list or dictionary that it adds to.

    Attributes:
        what: "module:attribute" or "module:Class.attribute".
        make: takes what is there, of a class or static method the plain function; returns the replacement. With
            `adds_to` it adds to what it is given.
        why: what does not work without it.
        test: the test file of the feature, below tests/ and without its ending.
        takes: the names of the parameters, separated by spaces, by which another version is recognised; None where
            Python knows no signature.
        when: the moment at which it is installed: "import", "Dynamo" (when Dynamo is loaded), "first compile" or
            "first random DTensor".
        for_device: whether it is installed only if the device `jax` has torch's PrivateUse1 slot.
        optional: whether its module need not be loaded, as in a torch built without it.
        since: the first release of torch that has it; older ones work without.
        adds_to: the type of the list or dictionary that is added to; None if the attribute is replaced.
        used_by: functions beside `what` itself by which the feature is used. They are left alone, but raise
            UnsupportedVersionError if the row is off.
        is_use: whether a call of one of these uses the feature, from its arguments.
        loss: what is lost if the row is off, where that is no error: such rows raise nothing.
    """

    what: str
    make: Callable[[Any], Any]
    why: str
    test: str
    takes: str | None = None
    when: str = "import"
    for_device: bool = True
    optional: bool = False
    since: str = ""
    adds_to: type | None = None
    used_by: tuple[str, ...] = ()
    is_use: IsUse = on_device
    loss: str = ""

    @property
    def is_needed(self) -> bool:
        """True if the installed torch is one that the row is for."""
        return not self.since or torch.__version__ >= self.since


OFF: dict[str, str] = {}
"""The rows that cannot be installed with this torch or JAX, with the reasons."""

_replaced: dict[str, Any] = {}


def install_rows(rows: Iterable[Patch], *when: str, has_device: bool) -> None:
    """Installs the rows of some moments, except those installed already, or without the device that they need."""
    for row in rows:
        is_due = row.is_needed and row.when in when and (has_device or not row.for_device)
        if is_due and row.what not in OFF and not (row.optional and _module_of(row.what) not in sys.modules):
            replace(row)


def replace(row: Patch) -> bool:
    """Installs one row, if its guard allows it; returns whether it is installed."""
    if row.what in _replaced:
        return True
    owner, name = _owner(row.what)
    known = _attribute(owner, name)
    if reason := _refusal(row, known):
        _switch_off(row, reason)
        return False
    if row.adds_to is not None:
        row.make(known)
    else:
        _put(owner, name, known, row.make)
    _replaced[row.what] = known
    return True


def _put(owner: Any, name: str, known: Any, make: Callable[[Any], Any]) -> None:
    """Replaces an attribute; a static or class method stays one."""
    kind = type(known) if isinstance(known, staticmethod | classmethod) else None
    new = make(known if kind is None else known.__func__)
    if kind is None and name == "__new__":
        kind = staticmethod
    setattr(owner, name, new if kind is None else kind(new))


def _switch_off(row: Patch, reason: str) -> None:
    """Logs that a row is off, and makes uses of its feature raise."""
    OFF[row.what] = reason
    _log.warning("%s %s: this is off: %s", row.what, reason, row.loss or row.why)
    for used in () if row.loss else (row.what, *row.used_by):
        owner, name = _owner(used)
        known = _attribute(owner, name)
        if callable(known) or isinstance(known, staticmethod | classmethod):
            refuse = functools.partial(refusing, name=used, moved=row.what, reason=reason, is_use=row.is_use)
            _put(owner, name, known, refuse)


@contextlib.contextmanager
def shadowed(what: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """A context in which a module has its own version of a built-in function, in all threads.

    One context at a time; if the module has the name already, it stays.

    Args:
        what: a key of `patches.SHADOWED`.
        make: takes the built-in function; returns what is called instead, which does for others what that does.
    """
    module, _, name = what.partition(":")
    scope = vars(sys.modules[module])
    if name in scope:
        OFF[what] = "is not a built-in function"
        _log.warning("%s %s: it stays", what, OFF[what])
        yield
        return
    scope[name] = make(getattr(builtins, name))
    try:
        yield
    finally:
        del scope[name]


_MISSING = object()


def _module_of(what: str) -> str:
    return what.partition(":")[0]


def _owner(what: str) -> tuple[Any, str]:
    """The module or class of an attribute, and the attribute's name; None if it does not exist."""
    module, _, path = what.partition(":")
    owner = sys.modules.get(module)
    *classes, name = path.split(".")
    for cls in classes:
        owner = getattr(owner, cls, None)
    return owner, name


def _attribute(owner: Any, name: str) -> Any:
    return _MISSING if owner is None else inspect.getattr_static(owner, name, _MISSING)


def _parameters(function: Any) -> str:
    """The names of a function's parameters; `inspect.signature` takes ten times as long."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "?" if code is None else " ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _refusal(row: Patch, known: Any) -> str:
    """The reason not to replace an attribute; empty if there is none."""
    if known is _MISSING:
        return "is not there"
    if row.adds_to is not None and not isinstance(known, row.adds_to):
        return f"is a {type(known).__name__}, not a {row.adds_to.__name__}"
    if row.takes is not None:
        found = _parameters(known.__func__ if isinstance(known, staticmethod | classmethod) else known)
        if found != row.takes:
            return f"takes ({found.replace(' ', ', ')}), not ({row.takes.replace(' ', ', ')})"
    return ""
