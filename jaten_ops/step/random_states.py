"""The states of the generators from which a step may draw random numbers that are no part of its program."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch


class _State(NamedTuple):
    get: Callable[[], Any]
    put: Callable[[Any], Any]


def _of(value: Any) -> _State | None:
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return _State(value.get_state, value.set_state)
    if isinstance(value, np.random.Generator):
        bits: Any = value.bit_generator
        return _State(lambda: bits.state, lambda state: setattr(bits, "state", state))
    if isinstance(value, np.random.RandomState):
        return _State(value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return _State(value.getstate, value.setstate)
    return None


class RandomStates:
    """The states of the default generators of Python, NumPy and torch on the CPU, and of those among some values."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._all = [
            _State(torch.default_generator.get_state, torch.default_generator.set_state),
            _State(random.getstate, random.setstate),
            _State(np.random.get_state, np.random.set_state),
            *(state for v in values if (state := _of(v)) is not None),
        ]
        self._before = [state.get() for state in self._all]

    def have_changed(self) -> bool:
        """True if one of them was drawn from."""
        return any(as_bytes(state.get()) != as_bytes(old) for state, old in zip(self._all, self._before, strict=True))

    def restore(self) -> None:
        """Makes them what they were."""
        for state, old in zip(self._all, self._before, strict=True):
            state.put(old)


def as_bytes(state: Any) -> bytes:
    """A state for comparing: a tensor, an array, or tuples and dictionaries with these."""
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)
