"""Structures of arguments and results as plain data, which JSON holds and a loader without torch reads.

A tree is a pair of a kind and what is inside: `["array", number]`, `["constant", value]`, `["tuple", trees]`,
`["list", trees]`, or `["dict", trees by name]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import UnsupportedInputError

Tree = list[Any]
_CONSTANTS = (type(None), bool, int, float, str)


class Place:
    """An array's place in a structure.

    Attributes:
        number: which array of all.
    """

    def __init__(self, number: int) -> None:
        self.number = number


def tree_of(value: Any) -> Tree:
    """The tree of a structure with a `Place` for each array.

    Named tuples become tuples, and other mappings and dataclasses, such as the outputs of transformers, dicts.

    Raises:
        UnsupportedInputError: a value that JSON does not have.
    """
    if isinstance(value, Place):
        return ["array", value.number]
    if isinstance(value, _CONSTANTS):
        return ["constant", value]
    if isinstance(value, Mapping):
        return ["dict", {_name(key): tree_of(each) for key, each in value.items()}]
    if isinstance(value, tuple | list):
        return ["tuple" if isinstance(value, tuple) else "list", [tree_of(each) for each in value]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ["dict", {f.name: tree_of(getattr(value, f.name)) for f in dataclasses.fields(value)}]
    expected = "tensors, numbers, strings and None in tuples, lists and dicts"
    raise UnsupportedInputError("an argument or a result of an exported program", type(value).__name__, expected)


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise UnsupportedInputError("the key of a dict of an exported program", repr(key), "a string")
    return key
