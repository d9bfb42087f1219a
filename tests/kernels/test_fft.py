"""The frequencies of a transform's bins, against ATen."""

from __future__ import annotations

import pytest
import torch

from ..harness.beside import Call, assert_same_outcome

CALLS: dict[str, Call] = {
    "odd": lambda ops: ops.fft_fftfreq(5),
    "one": lambda ops: ops.fft_fftfreq(1),
    "none": lambda ops: ops.fft_fftfreq(0),
    "negative": lambda ops: ops.fft_fftfreq(-1),
    "integers": lambda ops: ops.fft_fftfreq(4, 0.5, dtype=torch.int64),
    "complex": lambda ops: ops.fft_fftfreq(4, 0.5, dtype=torch.complex64),
    "half": lambda ops: ops.fft_fftfreq(4, 0.5, dtype=torch.float16),
    "real": lambda ops: ops.fft_rfftfreq(5),
    "real of nothing": lambda ops: ops.fft_rfftfreq(0),
    "no spacing": lambda ops: ops.fft_rfftfreq(4, 0.0),
    "bins that bfloat16 rounds": lambda ops: ops.fft_rfftfreq(600, 0.37, dtype=torch.bfloat16),
    "double": lambda ops: ops.fft_rfftfreq(600, 0.37, dtype=torch.float64),
}


@pytest.mark.parametrize("name", CALLS)
def test_frequencies(name: str) -> None:
    assert_same_outcome("fft_fftfreq", CALLS[name])
