"""Meshes: the devices of all processes, in an array with named axes."""

from __future__ import annotations

import math

import jax
from jax.sharding import AxisType, Mesh

from ..errors import UnsupportedInputError


def make_mesh(**axes: int) -> Mesh:
    """A mesh over all devices of all processes, whose axes are partitioned by the compiler (`AxisType.Auto`).

    Args:
        axes: the size of each axis, by its name, as in `make_mesh(data=2, model=4)`; one of them may be -1, for as many
            as there are devices left.

    Returns:
        A `jax.sharding.Mesh`.

    Raises:
        UnsupportedInputError: the product of the sizes is not the number of devices.

    Example:
        >>> from jaten_ops import distributed
        >>> distributed.make_mesh(data=-1).shape["data"] == len(jax.devices())
        True
    """
    count = len(jax.devices())
    sizes = {name: int(size) for name, size in axes.items()}
    open_axes = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    if len(open_axes) == 1 and known > 0 and count % known == 0:
        sizes[open_axes[0]] = count // known
    if not sizes or math.prod(sizes.values()) != count or min(sizes.values()) < 1:
        raise UnsupportedInputError(
            "make_mesh", f"axes {axes}", f"sizes whose product is the number of devices, {count}; one may be -1"
        )
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
