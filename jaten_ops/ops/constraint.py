"""The operator `jaten_distributed::constrain`, which places a value of a program over a mesh."""

from __future__ import annotations

from typing import Any

import jax
import torch

from ..arrays import partitioned
from ..arrays.placements import layout_of_text, layout_over, names_mesh
from ..registry import fake, gradient
from .user_ops import op

NAME = "jaten_distributed::constrain"


@op(f"{NAME}(Tensor x, str layout) -> Tensor", differentiable=["x"])
def constrained_array(x: Any, layout: str) -> Any:
    """The values of x, partitioned as a layout says, or placements over the mesh of x; its gradient likewise."""
    found = layout_of_text(layout) if names_mesh(layout) else layout_over(layout, partitioned.mesh_of(x))
    sharding = found.sharding(x.shape)
    partitioned.note(sharding)
    return jax.lax.with_sharding_constraint(x, sharding)


@fake(NAME)
def fake_constrain(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor of the same shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@gradient(NAME)
def gradient_of_constrain(grads: Any, args: Any, results: Any) -> dict[str, Any]:
    """The gradient in the same layout: `jax.vjp` of the kernel would keep x for it, of which it needs no values."""
    return {"x": torch.ops.jaten_distributed.constrain(grads[0], args[1])}
