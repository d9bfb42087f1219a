"""The table of patches says all that an import changes of torch and JAX, and nothing else."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.nn.attention.flex_attention  # noqa: F401  # its rows need it

from jaten_ops.hooks import ledger
from jaten_ops.hooks.patches import FILLED, PATCHES, REGISTERED, SHADOWED

from ..harness import snapshot

TESTS = Path(__file__).parents[1]
FIRST = {what for what, row in PATCHES.items() if row.when.startswith("first ")}
ADDED = {what for what, row in PATCHES.items() if row.adds_to is not None}


@pytest.fixture(scope="module")
def seen() -> dict[str, list[str]]:
    """The changes that a fresh process sees."""
    command = [sys.executable, "-P", snapshot.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_import_changes_what_the_table_says(seen: dict[str, list[str]]) -> None:
    """A change without a row fails, and a row without a change."""
    needed = {what for what, row in PATCHES.items() if row.is_needed}
    assert seen["import"] == sorted((needed - FIRST - ADDED) | REGISTERED.keys())


def test_use_changes_what_the_table_says(seen: dict[str, list[str]]) -> None:
    assert seen["backend"] == []
    assert seen["use"] == sorted(FIRST)


def test_import_fills_what_the_table_says(seen: dict[str, list[str]]) -> None:
    """But for a table in C++, which Python cannot see; JAX 0.10.0 has it in Python, by two names."""
    unseen = {what for what, row in PATCHES.items() if row.adds_to is object}
    older = [table for what in unseen if isinstance(table := _found(what), dict)]
    filled = [what for what in seen["fills"] if not any(_found(what) is table for table in older)]
    assert filled == sorted(FILLED.keys() | ADDED - unseen)


def _found(what: str) -> Any:
    module, _, path = what.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def test_installed_versions_allow_every_row(seen: dict[str, list[str]]) -> None:
    assert seen["off"] == []


@pytest.mark.parametrize("what", PATCHES)
def test_rows_are_whole(what: str) -> None:
    """The test of a row is there, and so are the functions that raise if the row is off."""
    row = PATCHES[what]
    assert row.why and (TESTS / f"{row.test}.py").exists()
    for used in row.used_by:
        owner, name = ledger._owner(used)
        assert callable(getattr(owner, name)), used


def _names(code: Any) -> set[str]:
    return {*code.co_names, *(n for c in code.co_consts if hasattr(c, "co_names") for n in _names(c))}


@pytest.mark.parametrize("what", SHADOWED)
def test_what_is_shadowed_is_asked_for_and_put_back(what: str) -> None:
    module, _, name = what.partition(":")
    found = importlib.import_module(module)
    functions = [f for f in vars(found).values() if inspect.isfunction(f) and f.__module__ == module]
    assert any(name in _names(inspect.unwrap(f).__code__) for f in functions)
    with pytest.raises(KeyError), ledger.shadowed(what, lambda known: lambda *a: known(*a) + 1):
        assert vars(found)[name](1, 1) == 2
        raise KeyError
    assert name not in vars(found)
