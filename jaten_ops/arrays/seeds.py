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
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


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


class Rewindable:
    """Seeds from a JAX PRNG key, which can be drawn again from the beginning; without a key, drawing raises.

    Attributes:
        position: the number of seeds drawn: the state of the device's generator in this context.
    """

    def __init__(self, key: jax.Array | None) -> None:
        self._key = key
        self.position = 0

    def __iter__(self) -> Iterator[jax.Array]:
        return self

    def __next__(self) -> jax.Array:
        if self._key is None:
            raise RuntimeError(
                "a random operator in a function made by as_jax needs a key. Fix: f(x, key=jax.random.key(0))"
            )
        self.position += 1
        return seed_at(self._key, self.position - 1)


def rewindable() -> Rewindable | None:
    """The seeds of the innermost `drawn_from`, if they can be drawn again."""
    seeds = _seeds.get()
    return seeds if isinstance(seeds, Rewindable) else None


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
