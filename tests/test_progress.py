"""A compile that takes long says so."""

from __future__ import annotations

import time

import pytest
import torch

import jaten_ops
from jaten_ops import progress


def test_a_quick_block_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.announced("a graph"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_slow_block_is_announced_and_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    with pytest.raises(KeyError), progress.announced("a graph"):
        time.sleep(0.2)
        raise KeyError
    first, last = capsys.readouterr().err.splitlines()
    assert first == "jaten: compiling a graph ..."
    assert last.startswith("jaten: ... after 0.")


def test_graphs_and_steps_are_announced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    torch.compile(lambda x: x.sin() + 1, backend="jaten")(torch.ones(3))
    assert "compiling a graph of 2 operators" in capsys.readouterr().err
    x = torch.ones(3, device="jax")
    step = jaten_ops.compile_step(lambda: x.add_(1), x)
    step(), step()
    assert "compiling a step" in capsys.readouterr().err
