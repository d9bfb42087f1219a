"""A compile that takes long says so."""

from __future__ import annotations

import io
import logging
import sys
import time

import pytest
import torch
import tqdm

import jaten_ops
from jaten_ops.xla import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal; to be called in a test's body, since pytest sets its own before."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_a_quick_block_is_silent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    terminal = _terminal(monkeypatch)
    with progress.announced("a graph"):
        pass
    assert terminal.getvalue() == "" and not caplog.records


@pytest.mark.parametrize("bars", [False, True])
def test_a_slow_block_is_announced_and_ends(monkeypatch: pytest.MonkeyPatch, bars: bool) -> None:
    terminal = _terminal(monkeypatch)
    if not bars:
        monkeypatch.delitem(sys.modules, "tqdm")
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    with pytest.raises(KeyError), progress.announced("a graph"):
        time.sleep(0.2)
        raise KeyError
    first, last = terminal.getvalue().replace("\x1b[K", "").replace("\r", "").splitlines()
    assert first == "jaten: compiling a graph ..."
    assert last.startswith("jaten: ... after 0.")


def _screen(written: str) -> list[str]:
    """The lines that a terminal shows."""
    lines, column = [""], 0
    for character in written.replace("\x1b[K", "\0"):
        if character == "\n":
            lines, column = [*lines, ""], 0
        elif character == "\r":
            column = 0
        elif character == "\0":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + character + lines[-1][column + 1 :]
            column += 1
    return [line.strip() for line in lines]


@pytest.mark.parametrize("known", [False, True], ids=["another's bar", "a bar of tqdm"])
def test_it_is_not_written_into_a_bar(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    terminal = _terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    if not known:
        monkeypatch.delitem(sys.modules, "tqdm")
    with tqdm.tqdm(total=2, file=terminal, mininterval=0, ascii=True) as bar:
        bar.update()
        with progress.announced("a graph"):
            time.sleep(0.1)
        bar.update()
    lines = _screen(terminal.getvalue())
    assert "jaten: compiling a graph ..." in lines
    assert not any("jaten" in line and "%" in line for line in lines)
    assert "2/2" in lines[-2]


def test_elsewhere_it_goes_to_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs and steps are announced."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    caplog.set_level(logging.INFO, progress.__name__)
    torch.compile(lambda x: x.sin() + 1, backend="jaten")(torch.ones(3))
    assert "compiling a graph of 2 operators" in caplog.text
    x = torch.ones(3, device="jax")
    step = jaten_ops.compile_step(lambda: x.add_(1), x)
    step(), step()
    assert "compiling a step" in caplog.text
    assert capsys.readouterr().err == ""
