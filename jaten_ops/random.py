"""Random numbers: torch's generators seed JAX's."""

from __future__ import annotations

import torch


def draw_seed(generator: torch.Generator | None = None) -> int:
    """A 63-bit seed drawn from a torch generator, the default CPU one if None.

    One draw a random op, or a call of a compiled graph, so `torch.manual_seed`, `get_rng_state` and `fork_rng` rule
    JAX's random numbers as they do torch's.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))
