"""Memory of a GPU without one: the order of the streams, and the error. `tests/test_accelerator.py` has programs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import jaten_ops
from jaten_ops.arrays import gpu_memory


def test_a_program_without_operands_waits_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: done.append("torch"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    run = gpu_memory.after_torch(lambda x: done.append("program") or x)
    assert run(3) == 3
    assert done == ["torch", "program"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="JAX may have that GPU, too")
def test_without_the_gpu_the_error_says_what_to_do() -> None:
    with pytest.raises(jaten_ops.UnsupportedInputError, match="cuda:0, where JAX has 0 GPUs"):
        gpu_memory.gpu_device(0)
