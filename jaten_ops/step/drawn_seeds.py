"""Seeds of the random operators of a step, by the states in which its generators are while it is traced.

Each draw moves the generator on, as an eager one does, and its seed is that of the state before it. So a program that
goes back to a state, as an activation checkpoint does that computes again, draws the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch

from ..arrays.seeds import SeedsOfGenerators, draw_seed, seed_at
from ..tracing import out_of_sight
from .random_states import as_bytes
from .state_capture import Capture, Source


class _States:
    """The states of a generator while a step is traced.

    Attributes:
        is_set: whether the step has given it a state in which it was not, as by `torch.manual_seed`.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._start = generator, generator.get_state()
        self._met = {as_bytes(self._start)}
        self._has_drawn = self.is_set = False

    def move_on(self) -> tuple[bytes, int]:
        """Draws from the generator; returns the state before, and the seed that an eager operator would have."""
        before = as_bytes(self._generator.get_state())
        self.is_set |= before not in self._met
        self._has_drawn = True
        with out_of_sight():
            seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=self._generator))
        self._met |= {before, as_bytes(self._generator.get_state())}
        return before, seed

    def settle(self) -> bool:
        """Takes the moves back, if they are all there is; returns whether the step itself has taken them back."""
        end = as_bytes(self._generator.get_state())
        if self.is_set or end not in self._met:
            return False
        self._generator.set_state(self._start)
        return self._has_drawn and end == as_bytes(self._start)


class _Stream:
    """Seeds of one operand, which is bound when the first is drawn; once the step has set a state, those of that."""

    def __init__(self, capture: Capture, generator: torch.Generator | None, states: _States) -> None:
        self._capture, self._generator, self._states = capture, generator, states
        self._places: dict[bytes, int] = {}
        self._key: jax.Array | None = None

    def __iter__(self) -> Iterator[jax.Array]:
        return self

    def __next__(self) -> jax.Array:
        state, own = self._states.move_on()
        found: jax.Array
        if self._states.is_set:
            found = self._bound(own)
            return found
        if self._key is None:
            seed = self._bound(self._generator)
            self._key = self._capture.outermost(lambda: jax.random.key(seed))
        key, place = self._key, self._places.setdefault(state, len(self._places))
        found = self._capture.outermost(lambda: seed_at(key, place))
        return found

    def _bound(self, seed: Any) -> Any:
        return self._capture.bind(Source("seed", seed), jax.core.ShapedArray((), "int64"))


class Seeds(SeedsOfGenerators):
    """Seeds that a program makes of its operands: of one for each generator, which a call draws from it."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._states: dict[int, tuple[torch.Generator | None, _States]] = {
            id(None): (None, _States(torch.default_generator))
        }
        self._streams: dict[int, _Stream] = {}

    def of(self, generator: torch.Generator | None) -> Iterator[jax.Array]:
        generator = None if generator is torch.default_generator else generator
        key = id(generator)
        if key not in self._streams:
            if generator is not None and key not in self._states:
                self._states[key] = generator, _States(generator)
            self._streams[key] = _Stream(self._capture, generator, self._states[key][1])
        return self._streams[key]

    def start_again(self) -> None:
        """Draws what follows from new operands."""
        self._streams.clear()

    def settle(self) -> tuple[list[torch.Generator | None], bool]:
        """Gives the generators the states back that they had before, but for those that something else has changed.

        Returns:
            The generators that are as before at the end of the step, which has drawn from them, None for the default
            one; and whether the step gives one of them a state of its own.
        """
        back = [generator for generator, states in self._states.values() if states.settle()]
        return back, any(states.is_set for _, states in self._states.values())


def drawn_at_call(generator: torch.Generator | int | None, goes_back: bool) -> np.int64:
    """The operand of a call: a number drawn from a generator, which then goes back if the step makes it do so.

    A seed of a state that the step has set is known already.
    """
    if isinstance(generator, int):
        return np.int64(generator)
    if not goes_back:
        return np.int64(draw_seed(generator))
    known = torch.default_generator if generator is None else generator
    before = known.get_state()
    try:
        return np.int64(draw_seed(generator))
    finally:
        known.set_state(before)
