"""The protocol by which `torch.distributed.checkpoint` saves and loads the parts of a partitioned tensor.

What calls these methods has imported that package, which is large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import torch

from ..arrays import attributes, carrier, local_parts, partitioned
from ..arrays.storage_views import View
from ..errors import UnsupportedInputError
from ..tracing import opaque, opaque_methods


@opaque_methods
class _OfParts:
    """A method that only partitioned tensors have: of others torch knows the parts, also within a DTensor."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = opaque(method)

    def __get__(self, tensor: Any, cls: Any = None) -> Any:
        if tensor is None:
            return self
        if _partitioned_array(tensor) is None:
            raise AttributeError(f"{self._method.__name__}: a tensor that is not partitioned")
        return self._method.__get__(tensor)


class CheckpointShards:
    """The part of `jaten_ops.Tensor` that checkpoints ask for. See `torch.distributed._checkpointable`."""

    __slots__ = ()

    @_OfParts
    def __create_write_items__(self, fqn: str, _object: Any) -> list[Any]:
        """The parts that this process saves: each once, however many devices have a copy of it."""
        checkpoint = _checkpoint()
        tensor: Any = self
        array = _partitioned_array(tensor)
        if jax.process_count() > 1 and not torch.distributed.is_initialized():
            raise UnsupportedInputError(
                "torch.distributed.checkpoint.save", "several processes without a process group",
                'torch.distributed.init_process_group("gloo"), by which they agree who saves what',
            )  # fmt: skip
        properties = checkpoint.metadata.TensorProperties.create_from_tensor(tensor.detach())
        return [
            checkpoint.planner.WriteItem(
                index=checkpoint.metadata.MetadataIndex(fqn, chunk.offsets),
                type=checkpoint.planner.WriteItemType.SHARD,
                tensor_data=checkpoint.planner.TensorWriteData(chunk=chunk, properties=properties, size=tensor.size()),
            )
            for chunk in _chunks(array, (s.index for s in array.addressable_shards if s.replica_id == 0))
        ]

    @_OfParts
    def __create_chunk_list__(self) -> list[Any]:
        """The parts that this process loads: each that one of its devices has."""
        tensor: Any = self
        array = _partitioned_array(tensor)
        return _chunks(array, local_parts.parts_of(array).values())

    @_OfParts
    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        """The part with an offset: a view, from which a checkpoint is saved, and into which it is loaded."""
        tensor: Any = self
        array = _partitioned_array(tensor)
        part = local_parts.parts_of(array).get(tuple(index.offset))
        if part is None:
            raise ValueError(f"{index.fqn}: no device of this process has the part at {index.offset}")
        whole = tensor.detach()
        return type(whole)(carrier.of(local_parts.view_of_part(carrier.view_of(whole), part)))  # type: ignore[no-any-return]  # a tensor


def _checkpoint() -> Any:
    """`torch.distributed.checkpoint`, imported by the caller of the protocol."""
    package: Any = torch.distributed
    return package.checkpoint


def _partitioned_array(tensor: torch.Tensor) -> Any:
    """The array of a partitioned tensor; None for one on a single device."""
    place = attributes.place_of(tensor)
    array = place.read() if type(place) is View else place
    return array if array is not None and partitioned.is_partitioned(array) else None


def _chunks(array: jax.Array, parts: Iterable[tuple[slice, ...]]) -> list[Any]:
    """Offsets and sizes of parts of an array."""
    chunk, size = _checkpoint().metadata.ChunkStorageMetadata, torch.Size(array.sharding.shard_shape(array.shape))
    return [chunk(offsets=torch.Size([dim.start or 0 for dim in part]), sizes=size) for part in parts]
