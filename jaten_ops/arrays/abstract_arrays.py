"""Arrays without values: shape, dtype and placement of a tensor over a mesh whose devices are not there."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding

from ..errors import MissingValuesError

AnyMesh = Mesh | AbstractMesh


class AbstractArray:
    """Stands for a `jax.Array` in a tensor that has no values.

    Attributes:
        shape, dtype, sharding: as an array has them.
    """

    __slots__ = ("dtype", "shape", "sharding")

    def __init__(self, shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> None:
        self.shape, self.dtype, self.sharding = shape, np.dtype(dtype), sharding

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    # JAX and NumPy ask an operand for such names before they say that it is none of theirs

    def __getattr__(self, name: str) -> NoReturn:
        raise MissingValuesError

    def __array__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise MissingValuesError


def is_abstract(sharding: Any) -> bool:
    """True if a sharding is over a mesh that is not there."""
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh)


def without_values(array: Any) -> AbstractArray:
    """The shape, dtype and placement of an array."""
    return AbstractArray(array.shape, array.dtype, array.sharding)


def as_struct(array: AbstractArray) -> jax.ShapeDtypeStruct:
    """An abstract array in the form in which JAX lowers programs; without a placement if that is one device."""
    sharding = array.sharding if array.sharding.num_devices > 1 else None
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
