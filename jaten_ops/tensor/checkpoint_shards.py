"""The protocol by which `torch.distributed.checkpoint` saves and loads the parts of a partitioned tensor.

What calls these methods has imported that package, which is large.
"""

from __future__ import annotations

from typing import Any

import jax
import torch

from ..arrays import attributes, partitioned
from ..arrays.storage_views import View
from ..errors import UnsupportedInputError


class CheckpointShards:
    """The part of `jaten_ops.Tensor` that checkpoints ask for. See `torch.distributed._checkpointable`."""

    __slots__ = ()

    def __create_write_items__(self, fqn: str, _object: Any) -> list[Any]:
        """The parts that this process saves: each once, however many devices have a copy of it."""
        checkpoint = _checkpoint()
        tensor: Any = self
        array = _partitioned_array(tensor)
        if array is None:
            return [checkpoint.planner_helpers._create_write_item_for_tensor(fqn, tensor)]
        properties = checkpoint.metadata.TensorProperties.create_from_tensor(tensor.detach())
        return [
            checkpoint.planner.WriteItem(
                index=checkpoint.metadata.MetadataIndex(fqn, chunk.offsets),
                type=checkpoint.planner.WriteItemType.SHARD,
                tensor_data=checkpoint.planner.TensorWriteData(chunk=chunk, properties=properties, size=tensor.size()),
            )
            for chunk in _chunks(array)
        ]

    def __create_chunk_list__(self) -> list[Any]:
        """The parts that this process loads."""
        tensor: Any = self
        array = _partitioned_array(tensor)
        if array is None:
            return [_checkpoint().planner_helpers._create_chunk_from_tensor(tensor)]
        if jax.process_count() > 1:
            raise UnsupportedInputError(
                "torch.distributed.checkpoint.load", "a tensor over several processes",
                "a whole tensor of the CPU in each, and then distribute_tensor(...)",
            )  # fmt: skip
        return _chunks(array)

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        """The part with an offset: a view, into which a checkpoint is loaded."""
        tensor: Any = self
        array = _partitioned_array(tensor)
        if array is None:
            return tensor  # type: ignore[no-any-return]  # all of it
        for shard in array.addressable_shards:
            start = _start(shard)
            if torch.Size(start) == index.offset:
                if jax.process_count() > 1:  # to be saved: a view of the whole would be computed by all processes
                    return torch.from_numpy(jax.device_get(shard.data))
                sizes = shard.data.shape
                return tensor.detach()[tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True))]  # type: ignore[no-any-return]  # a view
        raise ValueError(f"{index.fqn}: no device of this process has the part at {index.offset}")


def _checkpoint() -> Any:
    """`torch.distributed.checkpoint`, imported by the caller of the protocol."""
    package: Any = torch.distributed
    return package.checkpoint


def _partitioned_array(tensor: torch.Tensor) -> Any:
    """The array of a partitioned tensor; None for one on a single device."""
    place = attributes.place_of(tensor)
    array = place.read() if type(place) is View else place
    return array if array is not None and partitioned.is_partitioned(array) else None


def _start(shard: Any) -> tuple[int, ...]:
    return tuple(part.start or 0 for part in shard.index)


def _chunks(array: jax.Array) -> list[Any]:
    """Offsets and sizes of the parts that are on devices of this process, each once among all processes."""
    chunk = _checkpoint().metadata.ChunkStorageMetadata
    shards = [s for s in array.addressable_shards if s.replica_id == 0]
    return [chunk(offsets=torch.Size(_start(s)), sizes=torch.Size(s.data.shape)) for s in shards]
