"""Replacing attributes: what the guard of a row allows is replaced, and what it does not is off."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from jaten_ops.errors import UnsupportedVersionError
from jaten_ops.hooks import ledger
from jaten_ops.hooks.ledger import Patch


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module in torch's place."""
    module: Any = types.ModuleType("some_library")

    class Thing:
        @staticmethod
        def of(x: int) -> int:
            return x

        @classmethod
        def named(cls) -> str:
            return cls.__name__

        def plus(self, x: Any) -> Any:
            return x

    module.twice = lambda x: 2 * x
    module.kept, module.Thing, module.__version__ = [1], Thing, "7.1"
    monkeypatch.setitem(sys.modules, "some_library", module)
    monkeypatch.setattr(ledger, "OFF", {})
    monkeypatch.setattr(ledger, "_replaced", {})
    yield module


def row(attribute: str, make: Callable[[Any], Any], takes: str | None = None, **options: Any) -> Patch:
    return Patch(f"some_library:{attribute}", make, "why not", "hooks/test_ledger", takes, **options)


def test_replacing(library: Any) -> None:
    more = row("twice", lambda known: lambda x: known(x) + 1, "x")
    assert ledger.replace(more) and ledger.replace(more)  # the second time nothing is done
    assert library.twice(3) == 7
    assert ledger.replace(row("Thing.of", lambda known: lambda x: known(x) + 1, "x"))
    assert library.Thing.of(3) == library.Thing().of(3) == 4
    assert ledger.replace(row("Thing.named", lambda known: lambda cls: known(cls) * 2, "cls"))
    assert library.Thing.named() == "ThingThing"
    kept = library.kept
    assert ledger.replace(row("kept", lambda known: known.append(2), adds_to=list))
    assert library.kept is kept == [1, 2]
    assert not ledger.OFF


def _never(_: object) -> None:
    raise AssertionError("asked for a replacement of what is not as it should be")


REFUSED = {
    "gone": (row("gone", _never), "is not there"),
    "gone with its class": (row("Gone.of", _never), "is not there"),
    "gone with its module": (Patch("another_library:twice", _never, "why not", "test"), "is not there"),
    "of other parameters": (row("Thing.plus", _never, "self y"), "takes (self, x), not (self, y)"),
    "of another type": (row("kept", _never, adds_to=dict), "is a list, not a dict"),
}


@pytest.mark.parametrize(("refused", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_the_guard_refuses_is_off(
    refused: Patch, reason: str, library: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "jaten_ops"):
        ledger.install_rows([refused], "import", has_device=True)
        ledger.install_rows([refused], "import", has_device=True)  # says it once
    assert {refused.what: reason} == ledger.OFF and len(caplog.records) == 1
    assert refused.what in caplog.text and "why not" in caplog.text


def test_a_use_of_what_is_off_raises(library: Any) -> None:
    ledger.replace(row("Thing.plus", _never, "self y", used_by=("some_library:twice", "some_library:none")))
    moved = r"some_library.Thing.plus takes \(self, x\), not \(self, y\)\. Fix: .*an older some_library"
    for use in (library.Thing().plus, library.twice):
        assert use(3) == library.Thing.of(3) * (2 if use is library.twice else 1)
        for there in ("jax", torch.device("jax", 0), {"x": [torch.ones(1, device="jax")]}):
            with pytest.raises(UnsupportedVersionError, match=moved):
                use(there)


def test_a_row_whose_loss_is_no_error_raises_nothing(library: Any, caplog: pytest.LogCaptureFixture) -> None:
    ledger.replace(row("twice", _never, "y", loss="it is slower"))
    assert library.twice("jax") == "jaxjax" and "it is slower" in caplog.text


@pytest.mark.parametrize(
    "options",
    [{"when": "Dynamo"}, {"for_device": True}, {"optional": True}, {"since": "100.1"}],
    ids=lambda options: next(iter(options)),
)
def test_rows_that_are_not_due_wait(options: dict[str, Any], library: Any) -> None:
    waiting = Patch("another_library:twice", _never, "why not", "test", **options)
    ledger.install_rows([waiting], "import", has_device="for_device" not in options)
    assert not ledger.OFF


def test_what_a_module_has_of_its_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "OFF", {})
    what = "torch.optim._adafactor:max"
    monkeypatch.setattr("torch.optim._adafactor.max", sum, raising=False)
    with ledger.shadowed(what, lambda known: None):
        assert torch.optim._adafactor.max is sum
    assert what in ledger.OFF
