"""One computation in two forms: as XLA's CPU compiler is best asked for it, and as every other platform is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax
from jax.export import is_symbolic_dim

from ..masking import cpu_forms

T = TypeVar("T")


def by_platform(*operands: Any, cpu: Callable[..., T], default: Callable[..., T]) -> T:
    """`cpu(*operands)` in a program for a CPU, `default(*operands)` in one for any other platform.

    A program is traced with both, and lowered with one: the other leaves nothing in it. Both are differentiated and
    mapped with the program. Outside `jax.jit` only the one for the devices at hand runs. Programs over several devices
    have `default`: XLA could not partition what is written for one CPU. So have programs with open sizes that are for
    any platform.

    Args:
        operands: arrays, or trees of them.
        cpu, default: functions of them, with results of the same shapes and dtypes.
    """
    leaves = jax.tree.leaves(operands)
    if any(map(is_over_mesh, leaves)):
        return default(*operands)
    if any(map(is_open, leaves)):
        return cpu(*operands) if cpu_forms.are_wanted() else default(*operands)
    return lax.platform_dependent(*operands, cpu=cpu, default=default)


def is_over_mesh(array: Any) -> bool:
    """True if an array, also one that JAX traces, is on several devices."""
    return jax.typeof(array).sharding.mesh.size > 1


def is_open(array: Any) -> bool:
    """True if an array has a size that the program leaves open."""
    return any(map(is_symbolic_dim, array.shape))
