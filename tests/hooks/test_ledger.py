"""The ledger says all that an import changes of torch and JAX, and nothing else; what it cannot change is off."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from jaten_ops.hooks import ledger
from jaten_ops.hooks.ledger import FILLED, PATCHES, REGISTERED, SHADOWED, Patch

from ..harness import snapshot

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def seen() -> dict[str, list[str]]:
    """The changes that a fresh process sees."""
    command = [sys.executable, "-P", snapshot.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_import_changes_what_the_ledger_says(seen: dict[str, list[str]]) -> None:
    """A change without a row fails, and a row without a change."""
    at_import = {what for what, row in PATCHES.items() if row.when != "first compile"}
    assert sorted(seen["import"]) == sorted(at_import | REGISTERED.keys())


def test_use_changes_what_the_ledger_says(seen: dict[str, list[str]]) -> None:
    assert seen["backend"] == []
    assert seen["use"] == sorted(what for what, row in PATCHES.items() if row.when == "first compile")


def test_import_fills_what_the_ledger_says(seen: dict[str, list[str]]) -> None:
    assert seen["fills"] == sorted(FILLED)


def test_installed_versions_allow_every_row(seen: dict[str, list[str]]) -> None:
    assert seen["off"] == []


@pytest.mark.parametrize("what", PATCHES)
def test_rows_name_their_test(what: str) -> None:
    row = PATCHES[what]
    assert row.why and len(list(TESTS.rglob(f"{row.test}.py"))) == 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module in torch's place, with rows of its own."""
    module = types.ModuleType("some_library")

    class Thing:
        @staticmethod
        def of(x: int) -> int:
            return x

        @classmethod
        def named(cls) -> str:
            return cls.__name__

        def plus(self, x: int) -> int:
            return x

    module.twice = lambda x: 2 * x  # type: ignore[attr-defined]
    module.Thing = Thing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_library", module)
    rows = [
        Patch("some_library:twice", "why not", "test_ledger", ("x",)),
        Patch("some_library:gone", "why not", "test_ledger"),
        Patch("some_library:Gone.of", "why not", "test_ledger"),
        Patch("another_library:twice", "why not", "test_ledger"),
        Patch("some_library:Thing.of", "why not", "test_ledger", ("x",)),
        Patch("some_library:Thing.named", "why not", "test_ledger"),
        Patch("some_library:Thing.plus", "why not", "test_ledger", ("self", "y")),
    ]
    monkeypatch.setattr(ledger, "PATCHES", {row.what: row for row in rows})
    monkeypatch.setattr(ledger, "OFF", {})
    monkeypatch.setattr(ledger, "_replaced", {})
    yield module


def test_replacing(library: types.ModuleType) -> None:
    for _ in range(2):  # the second time nothing is done
        assert ledger.replace("some_library:twice", lambda known: lambda x: known(x) + 1)
    assert library.twice(3) == 7
    assert ledger.replace("some_library:Thing.of", lambda known: lambda x: known(x) + 1)
    assert library.Thing.of(3) == library.Thing().of(3) == 4
    assert ledger.replace("some_library:Thing.named", lambda known: lambda cls: known(cls) * 2)
    assert library.Thing.named() == "ThingThing"
    assert not ledger.OFF


def _never(_: object) -> None:
    raise AssertionError("asked for a replacement of what is not as it should be")


@pytest.mark.parametrize("what", ["some_library:gone", "some_library:Gone.of", "another_library:twice"])
def test_what_is_not_there_is_off(what: str, library: types.ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaten_ops"):
        assert not ledger.replace(what, _never)
    assert {what: "is not there"} == ledger.OFF and len(caplog.records) == 1
    assert what in caplog.text and "why not" in caplog.text


def test_what_takes_other_parameters_is_off(library: types.ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    known = library.Thing.plus
    assert not ledger.replace("some_library:Thing.plus", _never)
    assert library.Thing.plus is known and "takes (self, x), not (self, y)" in caplog.text


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


def test_what_a_module_has_of_its_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "OFF", {})
    what = "torch.optim._adafactor:max"
    monkeypatch.setattr("torch.optim._adafactor.max", sum, raising=False)
    with ledger.shadowed(what, lambda known: None):
        assert torch.optim._adafactor.max is sum
    assert what in ledger.OFF
