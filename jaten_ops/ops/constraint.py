"""The operator `jaten_distributed::constrain`, which places a value of a program over a mesh."""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax.sharding import NamedSharding

from ..arrays import attributes, partitioned
from ..arrays.placements import Layout, halfway, layout_of, layout_of_text, layout_over, names_mesh
from ..arrays.storage_views import View
from ..registry import fake, gradient
from ..xla.equations import ELEMENTWISE
from .user_ops import op

NAME = "jaten_distributed::constrain"
_MOSTELEMENTWISE = 16


@op(f"{NAME}(Tensor x, str layout) -> Tensor", differentiable=["x"])
def constrained_array(x: Any, layout: str) -> Any:
    """The values of x, partitioned as a layout says, or placements over the mesh of x; its gradient likewise."""
    found = layout_of_text(layout) if names_mesh(layout) else layout_over(layout, partitioned.mesh_of(x))
    sharding = found.sharding(x.shape)
    partitioned.note(sharding)
    between = _between(_sharding_in_program(x), found, x.shape)
    if between is not None:
        x = jax.lax.with_sharding_constraint(x, between.sharding(x.shape))
    return jax.lax.with_sharding_constraint(x, sharding)


def _between(source: Any, target: Layout, shape: Any) -> Layout | None:
    """A layout on the way from a sharding to another, without which XLA would gather everything; mostly None."""
    if not isinstance(source, NamedSharding) or source.mesh != target.mesh or target.is_open:
        return None
    spec = halfway(source, target.sharding(shape), len(shape))
    return None if spec is None else layout_of(spec, target.mesh, "placements")


def _sharding_in_program(x: Any) -> Any:
    """The sharding that a traced program gives a value, or the one of which it is an elementwise function; or None."""
    for _ in range(_MOSTELEMENTWISE):
        x = getattr(x, "primal", x)  # of one that JAX differentiates by
        equation = getattr(x, "parent", None)  # of JAX's tracers of programs; others have none
        if equation is None:
            return None
        inner = getattr(equation.params.get("jaxpr", equation.params.get("call_jaxpr")), "eqns", [equation])
        constraints = [e for e in inner if e.primitive.name == "sharding_constraint"]
        if constraints:
            return None if constraints[-1].params["unconstrained_dims"] else constraints[-1].params["sharding"]
        alike = [t for t in equation.in_tracers if t.shape == x.shape]
        if not alike or any(e.primitive.name not in ELEMENTWISE for e in inner):
            return None
        x = alike[0]
    return None


def constrained_in_steps(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor by the operator, in two steps if its values are known to lie where one would gather them all."""
    operator = torch.ops.jaten_distributed.constrain
    place: Any = attributes.place_of(tensor)
    array = place.storage.array if type(place) is View else place
    if array is not None and names_mesh(layout) and (type(place) is not View or place.is_whole(array)):
        source = _sharding_in_program(array) if isinstance(array, jax.core.Tracer) else array.sharding
        between = _between(source, layout_of_text(layout), array.shape)
        if between is not None:
            tensor = operator(tensor, between.text())
    return operator(tensor, layout)  # type: ignore[no-any-return]  # torch has no types for operators


@fake(NAME)
def fake_constrain(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor of the same shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@gradient(NAME)
def gradient_of_constrain(grads: Any, args: Any, results: Any) -> dict[str, Any]:
    """The gradient in the same layout: `jax.vjp` of the kernel would keep x for it, of which it needs no values."""
    return {"x": constrained_in_steps(grads[0], args[1])}
