"""The operator `jaten_distributed::constrain`, which places a value of a program over a mesh."""

from __future__ import annotations

from typing import Any

import jax
import torch

from ..arrays import partitioned
from ..arrays.placements import layout_of_text
from ..registry import fake
from .user_ops import op

NAME = "jaten_distributed::constrain"


@op(f"{NAME}(Tensor x, str layout) -> Tensor", differentiable=["x"])
def constrained_array(x: Any, layout: str) -> Any:
    """The values of x, partitioned as a layout says; its gradient likewise."""
    sharding = layout_of_text(layout).sharding(x.shape)
    partitioned.note(sharding)
    return jax.lax.with_sharding_constraint(x, sharding)


@fake(NAME)
def fake_constrain(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor of the same shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)
