"""The content of new memory: zeros, or what torch's deterministic algorithms ask for."""

from __future__ import annotations

from typing import Any

import torch

OVERLOADS = frozenset({
    "empty.memory_format", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
})  # fmt: skip
"""Operators that create uninitialized memory."""


def value_of(dtype: torch.dtype) -> Any:
    """NaN or a dtype's largest number under `torch.use_deterministic_algorithms(True)`, as in torch; otherwise 0."""
    if not is_filled():
        return 0
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def is_filled() -> bool:
    """True if new memory is to be filled, by the setting of `torch.utils.deterministic` that goes with that mode."""
    return torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # the module is one of torch's own classes
