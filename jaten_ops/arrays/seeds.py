"""Seeds for JAX, drawn from torch's generators."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import jax
import torch

from ..tracing import out_of_sight

_seeds: contextvars.ContextVar[Iterator[Any] | None] = contextvars.ContextVar("seeds", default=None)


def draw_seed(generator: torch.Generator | None = None) -> Any:
    """A 63-bit seed drawn from a torch generator, the default CPU one if None.

    Each random op, and each call of a compiled graph, draws one, so that `torch.manual_seed`, `get_rng_state` and
    `fork_rng` control JAX's random numbers like torch's. Within `drawn_from` it is the next of its seeds, or of those
    that they have of a generator.
    """
    seeds = _seeds.get()
    if seeds is not None:
        return next(seeds.of(generator) if isinstance(seeds, SeedsOfGenerators) else seeds)
    return _drawn(generator)


def _drawn(generator: torch.Generator | None) -> int:
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator))


@contextlib.contextmanager
def drawn_from(seeds: Iterator[Any]) -> Iterator[None]:
    """A context in which random ops take their seeds from an iterator, of traced numbers if JAX traces the program."""
    token = _seeds.set(seeds)
    try:
        yield
    finally:
        _seeds.reset(token)


class SeedsOfGenerators(ABC):
    """Seeds of several generators, each a stream of its own."""

    @abstractmethod
    def of(self, generator: torch.Generator | None) -> Iterator[Any]:
        """The seeds of one generator, the default CPU one if None."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.of(None))


class SeedsOfKey(SeedsOfGenerators):
    """Seeds from a JAX PRNG key; without a key, drawing raises.

    Each draw moves torch's generator on, and its seed is that of the state before: what goes back to a state, as an
    activation checkpoint does that computes again, draws the same seed again. They are numbered as they are met, so
    that the seeds are the key's, whatever the states are.
    """

    def __init__(self, key: jax.Array | None) -> None:
        self._key = key
        self._places: dict[tuple[int, bytes], int] = {}
        self._before: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def of(self, generator: torch.Generator | None) -> Iterator[jax.Array]:
        moved = torch.default_generator if generator is None else generator
        while True:
            state = moved.get_state()
            place = self._places.setdefault((id(moved), state.numpy().tobytes()), len(self._places))
            found = self.at(place)
            self._before.setdefault(id(moved), (moved, state))
            with out_of_sight():
                _drawn(moved)
            yield found

    def at(self, place: int) -> jax.Array:
        """The seed with a number, from 0."""
        if self._key is None:
            raise RuntimeError(
                "a random operator in a function made by as_jax needs a key. Fix: f(x, key=jax.random.key(0))"
            )
        return seed_at(self._key, place)

    def start_again(self) -> None:
        """Draws the first seed next."""
        self._places.clear()

    def restore(self) -> None:
        """Gives the generators the states back that they had before the first draw."""
        for generator, state in self._before.values():
            generator.set_state(state)


def seeds_of_key() -> SeedsOfKey | None:
    """The seeds of the innermost `drawn_from`, if they are those of a key."""
    seeds = _seeds.get()
    return seeds if isinstance(seeds, SeedsOfKey) else None


def seed_at(key: jax.Array, count: int) -> jax.Array:
    """The seed with a number, from 0, of those that a JAX PRNG key has."""
    return jax.random.bits(jax.random.fold_in(key, count), (), "uint32")


def seeds_of(key: jax.Array) -> Iterator[jax.Array]:
    """An endless iterator of seeds from a JAX PRNG key."""
    for count in itertools.count():
        yield seed_at(key, count)


def seeds_of_part(offset: int, generator: torch.Generator | None) -> Iterator[int]:
    """An endless iterator of seeds from a torch generator, for a part of a tensor that begins at an offset.

    Each part has others, while the generator moves on for all parts alike. The part at 0 has those of a whole tensor.
    """
    while True:
        yield (_drawn(generator) + offset * _FAR) % 2**63


_FAR = 0x9E3779B97F4A7C15  # odd, so that no two offsets give the same; far, so that neither do two draws
