"""Programs where JAX's default device is not the CPU: on a second client here, on the GPU of a machine that has one."""

from __future__ import annotations

import functools

import pytest

from .harness.asked_process import AskedProcess
from .programs import accelerator

_SECONDS = 600.0
_DEFAULT = {
    ("perceptron", "eager"), ("a number on the CPU", "compiled"), ("a number on the CPU", "step"),
    ("perceptron", "compiled CPU tensors"), ("chosen", "eager"), ("chosen", "compiled"), ("to the CPU", "compiled"),
    ("saved", "eager"), ("exported", "eager"),
}  # fmt: skip


@functools.cache
def _process() -> AskedProcess:
    # an executable of the second client would be taken from the disk for the first
    return AskedProcess("tests.programs.accelerator_rows", {"JATEN_CACHE": "0"})


ROWS = [
    pytest.param(*row, marks=() if row in _DEFAULT else pytest.mark.exhaustive)
    for row in accelerator.ROWS
    if accelerator.WAYS[row[1]].device != "cuda"
]


@pytest.mark.parametrize(("name", "way"), ROWS)
def test_on_a_second_client(name: str, way: str) -> None:
    _process().send([name, way])
    answer = _process().answer(_SECONDS)
    assert "error" not in answer, answer["error"]
    assert answer["result"] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "way"), accelerator.ROWS)
def test_on_this_machine(name: str, way: str) -> None:
    if not accelerator.has(way):
        pytest.skip(f"this process has no {accelerator.WAYS[way].device}: JATEN_DEVICE decides where there is a GPU")
    assert accelerator.differences(name, way) == []
