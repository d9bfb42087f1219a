"""The rows of each supported torch: those of the oldest, and the differences that each later release has made to them.

A file of differences has a line for each row that is new or has changed, and for each that is gone: the table, then the
row, or only the name of what is gone. This module imports nothing, as `spec` does, so that the code generator can load
it when the package itself does not import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable

OLDEST = (2, 13)
"""The release whose rows are the files of the tables."""

TABLES = ("functional", "variants", "composite")

Release = tuple[int, int]
Tables = Mapping[str, Mapping[str, str]]
"""For each table, the rows by overload."""

_DIFFERENCES = re.compile(r"torch_(\d+)_(\d+)\.ops")
_SEPARATOR = "\t"


def release_of(version: str) -> Release:
    """The two numbers of a release: (2, 13) of "2.13.0+cpu"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def differences_name(release: Release) -> str:
    """The name of a release's file of differences."""
    return "torch_{}_{}.ops".format(*release)


def by_overload(lines: list[str]) -> dict[str, str]:
    """The rows among the lines of a file, without its comments."""
    return {line.partition("(")[0]: line for line in lines if line and not line.startswith("#")}


def _lines(directory: Traversable, name: str) -> list[str]:
    return directory.joinpath(name).read_text(encoding="utf-8").splitlines()


def changed(tables: Tables, lines: list[str]) -> dict[str, dict[str, str]]:
    """The tables after the differences that the lines of a file say."""
    result = {table: dict(rows) for table, rows in tables.items()}
    for line in lines:
        table, _, row = line.partition(_SEPARATOR)
        if table in result and _SEPARATOR in row:
            result[table][row.partition("(")[0]] = row
        elif table in result:
            result[table].pop(row, None)
    return result


def differences(before: Tables, after: Tables) -> list[str]:
    """The lines that make the tables of one release those of another, in the order of the overloads."""
    lines = []
    for table in TABLES:
        for overload in sorted(before[table].keys() | after[table].keys()):
            row = after[table].get(overload, overload)
            if row != before[table].get(overload):
                lines.append(f"{table}{_SEPARATOR}{row}")
    return lines


def history(directory: Traversable, before: Release | None = None) -> dict[Release, dict[str, dict[str, str]]]:
    """The tables of each release that has a file, in the order of the releases; only of those before one, if given."""
    tables = {table: by_overload(_lines(directory, f"{table}.ops")) for table in TABLES}
    result = {OLDEST: tables}
    found = [(m, f) for f in directory.iterdir() if (m := _DIFFERENCES.fullmatch(f.name)) is not None]
    for release, name in sorted((release_of(m[0]), f.name) for m, f in found):
        if before is None or release < before:
            tables = changed(tables, _lines(directory, name))
            result[release] = tables
    return result


def tables_of(release: Release, found: Mapping[Release, Tables]) -> Tables:
    """The tables of a release: those of the last one up to it that has a file, or of the oldest."""
    return found[max((r for r in found if r <= release), default=OLDEST)]
