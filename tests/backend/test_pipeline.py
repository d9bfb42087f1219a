"""The list of passes: it is all that there is, in the order of the stages, and logs show what each pass does."""

from __future__ import annotations

import itertools
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo

from jaten_ops.backend import pipeline
from jaten_ops.backend.pipeline import PASSES, Stage

FOLDER = Path(pipeline.__file__).parent / "passes"
TESTS = Path(__file__).parent / "passes"


def test_each_module_of_the_folder_is_a_pass_and_has_its_tests() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert modules == {row.name for row in PASSES}
    assert modules <= {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    for row in PASSES:
        assert row.run.__name__ == row.name
        assert row.run.__module__.rpartition(".")[2] == row.name


def test_the_stages_are_in_order() -> None:
    assert [stage for stage, _ in itertools.groupby(row.on for row in PASSES)] == list(Stage)


PROGRAM = """
import torch, jaten_ops

@torch.compile(backend="jaten")
def f(x):
    return x[:, 0] * x[:, 1] + x[:, 2]

f(torch.ones(2, 4, requires_grad=True)).sum().backward()
"""


CHANGED = [("forward", "rename_operators"), ("backward", "rename_operators"), ("backward", "concat_gradients")]


def test_the_graph_is_logged_after_each_pass_that_changed_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JATEN_CACHE", "0")
    torch._dynamo.reset()
    with caplog.at_level(logging.DEBUG, pipeline.__name__):
        exec(PROGRAM, {"__name__": "program"})
    assert re.findall(r"(\w+) graph after (\w+) \(", caplog.text) == CHANGED
    assert "cat_default: float32[2, 4] = jaten::cat(" in caplog.text


@pytest.mark.exhaustive
def test_logs_of_torch_show_it() -> None:
    settings = {"TORCH_LOGS": "+jaten_ops", "JATEN_CACHE": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\w+) graph after (\w+) \(", done.stderr) == CHANGED
    assert re.search(r"pipeline.py:\d+\] .*cat_default: float32\[2, 4\] = jaten::cat\(", done.stderr)
