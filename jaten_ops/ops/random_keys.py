"""The operator that draws PRNG keys, for random operators of users that are differentiated or called on a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch

from ..registry import fake
from .companions import DRAW
from .user_ops import op


@op(
    f"{DRAW}(Tensor like, SymInt[] batch, str of, *, Generator? generator=None) -> Tensor",
    tags=["nondeterministic_seeded"],
)
def key_words(like: Any, batch: Sequence[int], of: str, *, key: jax.Array) -> jax.Array:
    """The words of the call's own key, or of a batch of keys split from it, as integers: shape (*batch, words).

    Args:
        like: a tensor of the device.
        batch: the shape of the batch.
        of: the operator for which it draws, for messages.
        key: the call's key.
    """
    keys = jax.random.split(key, tuple(batch)) if batch else key
    return jax.lax.bitcast_convert_type(jax.random.key_data(keys), "int32")


@fake(DRAW)
def fake_key_words(
    like: torch.Tensor, batch: Sequence[Any], of: str, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """A tensor of that shape: JAX would split a key for each size apart."""
    return like.new_empty((*batch, 2), dtype=torch.int32)
