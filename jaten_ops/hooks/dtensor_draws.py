"""Random operators on DTensors of torch, on the device: each part has numbers of its own.

torch moves the state of the device's generator, as CUDA has it, to where a part begins. On the device an operator draws
a seed from torch's default generator; the seed of a part is one that its offset changes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.traceback import annotate

from ..arrays import seeds

PART = "jaten_part"
"""The name, among a node's annotations, of the offset of the part for which it draws."""


def of_parts(region: Callable[..., Any]) -> Callable[..., Any]:
    """`OffsetBasedRNGTracker._distribute_region`, the context in which such an operator runs on a part."""

    @functools.wraps(region)
    def call(self: Any, spec: Any, generator: torch.Generator | None = None) -> Any:
        if self._device.type != "jax":
            return region(self, spec, generator)
        offset, _ = self._compute_rng_offsets(spec)
        return _drawing(offset, generator)

    return call


@contextlib.contextmanager
def _drawing(offset: int, generator: torch.Generator | None) -> Iterator[None]:
    """A context for an operator on the part at an offset, and for its node if it is captured."""
    with seeds.drawn_from(seeds.seeds_of_part(offset, generator)), annotate({PART: offset}):
        yield
