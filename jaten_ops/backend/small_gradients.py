"""Small gradients of a backward graph leave its executable in one array, of which each is a part.

An array costs JAX and torch three microseconds together, whatever its size, and half of a model's parameters are biases
and weights of norms. Each gradient is a tensor with a storage of its own, aligned as JAX wants it; the memory is free
when none of them is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from jaten_ops.arrays import bridge
from jaten_ops.arrays.strides import row_major

LARGEST = 2**14
"""The most bytes of a small gradient."""
FEWEST = 4
"""The fewest that share an array."""


@dataclass(frozen=True)
class Pack:
    """Results of one dtype that are one array.

    Attributes:
        members: their places among the results.
        shapes: of each; equal ones follow one another.
        dtype: of all.
    """

    members: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: np.dtype

    def packed(self, results: Sequence[jax.Array]) -> jax.Array:
        """The array, of the results as they are traced."""
        unit = bridge.ALIGNMENT // self.dtype.itemsize
        # kept apart, since XLA would compute all of them in one loop, with a condition for each
        flat = lax.optimization_barrier([results[i].reshape(-1) for i in self.members])
        return jnp.concatenate([jnp.pad(x, (0, -x.size % unit)) for x in flat])

    def unpacker(self) -> Callable[[jax.Array], list[torch.Tensor]]:
        """A function that makes the results' tensors of the array."""
        blocks, offset = [], 0
        for shape, same in itertools.groupby(self.shapes):
            count, size = len(list(same)), math.prod(shape) * self.dtype.itemsize
            length = size + -size % bridge.ALIGNMENT
            strides = (length, *[stride * self.dtype.itemsize for stride in row_major(shape)])
            blocks.append(((count, *shape), offset, strides))
            offset += count * length
        export = bridge.exporter(bridge.TORCH_DTYPES[self.dtype], offset // self.dtype.itemsize)
        dtype, part, tensor = self.dtype, np.ndarray, torch.from_numpy

        def unpack(array: jax.Array) -> list[torch.Tensor]:
            memory = export(array).numpy()
            found: list[torch.Tensor] = []
            for shape, start, strides in blocks:
                found += map(tensor, part(shape, dtype, memory, start, strides))
            return found

        return unpack


def packs(candidates: Sequence[tuple[int, torch.dtype, tuple[int, ...]]]) -> list[Pack]:
    """The packs of results, given as their places, dtypes and shapes: in each those of a shape are together."""
    found: dict[np.dtype, dict[tuple[int, ...], list[int]]] = {}
    for place, dtype, shape in candidates:
        # NumPy, which makes the parts, iterates over arrays, but not over numbers
        if shape and 0 < math.prod(shape) * dtype.itemsize <= LARGEST and bridge.is_held_by_numpy(dtype):
            found.setdefault(bridge.to_numpy_dtype(dtype), {}).setdefault(shape, []).append(place)
    made = []
    for kind, by_shape in found.items():
        members = tuple(place for places in by_shape.values() for place in places)
        shapes = tuple(shape for shape, places in by_shape.items() for _ in places)
        made += [Pack(members, shapes, kind)] if len(members) >= FEWEST else []
    return made


def others(packs: Sequence[Pack], count: int) -> list[int]:
    """The places of results that are in no pack."""
    members = {i for pack in packs for i in pack.members}
    return [i for i in range(count) if i not in members]


def packed(
    graph: Callable[..., list[jax.Array]], packs: Sequence[Pack], kept: Sequence[int]
) -> Callable[..., list[jax.Array]]:
    """A function whose results are those of another that are kept, then the packs, then the rest, as conditions."""
    if not packs:
        return graph
    count = len(kept) + sum(len(pack.members) for pack in packs)

    def run(*arrays: jax.Array) -> list[jax.Array]:  # by this name profiles know it
        results = graph(*arrays)
        return [*[results[i] for i in kept], *[pack.packed(results) for pack in packs], *results[count:]]

    return run
