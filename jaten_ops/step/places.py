"""The places in which a step finds tensors and other values: items, attributes, slots, variables."""

from __future__ import annotations

import contextlib
import enum
import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)


class Named:
    """Places that are no collection, as one: what stands at a key can be read and replaced."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError

    def __setitem__(self, key: Any, value: Any) -> None:
        raise NotImplementedError

    def restore(self, key: Any, value: Any) -> None:
        """Puts back what stood at a key."""
        try:
            if self[key] is value:
                return
        except (LookupError, AttributeError, ValueError):
            pass
        self[key] = value


class Cells(Named):
    """A function's closure."""

    of: Sequence[types.CellType]

    def __getitem__(self, index: int) -> Any:
        return self.of[index].cell_contents

    def __setitem__(self, index: int, value: Any) -> None:
        self.of[index].cell_contents = value


class Variables(Named):
    """The globals of a function."""

    def __getitem__(self, name: str) -> Any:
        return self.of[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.of[name] = value


class ClassAttributes(Named):
    """The attributes of a class itself, as they are written there."""

    def __getitem__(self, name: str) -> Any:
        return vars(self.of)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)


class Slots(Named):
    """The attributes of an object that are in slots."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self.of, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)


class Float(NamedTuple):
    """A number of a group of parameters that is an operand of the program."""

    group: dict[str, Any]
    key: str
    at: int | None  # within a tuple

    def read(self) -> Any:
        value = self.group[self.key]
        return value if self.at is None else value[self.at]


@contextlib.contextmanager
def shadowed_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A context in which an attribute of an object has another value, or replaces a method of its class."""
    own = owner.__dict__
    before = {name: own[name]} if name in own else {}
    own[name] = value
    try:
        yield
    finally:
        if not before:
            own.pop(name, None)
        own.update(before)  # it stays at its place among the attributes, which are part of what a program is for


def is_plain(value: Any) -> bool:
    """True if a value alone decides what a step does, and can be compared."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(is_plain, value)))


def plain_items(collection: Any) -> Any:
    """The plain items of a collection, and the places of others, which are None."""
    if isinstance(collection, dict):
        return [(k if is_plain(k) else None, v if is_plain(v) else None) for k, v in collection.items()]
    if isinstance(collection, set | frozenset):
        return frozenset([v if is_plain(v) else id(v) for v in collection])
    return [v if is_plain(v) else None for v in collection]


def restore(holder: Any, copy: Any) -> None:
    """Makes a collection, or one named place, what it was when the copy was made."""
    if isinstance(holder, Named):
        holder.restore(*copy)
    elif isinstance(holder, dict):
        if len(holder) != len(copy) or any(holder.get(k, holder) is not v for k, v in copy.items()):
            holder.clear()
            holder.update(copy)
    elif isinstance(holder, list):
        holder[:] = copy
    elif isinstance(holder, set | deque):
        holder.clear()
        (holder.update if isinstance(holder, set) else holder.extend)(copy)
