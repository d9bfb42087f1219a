"""The cost of a step over a mesh, which need not be there: its memory on each device, and its collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ..arrays import partitioned
from ..arrays.abstract_arrays import AnyMesh
from ..errors import UnsupportedInputError
from ..step.compiled import Step
from ..xla import cpu_client, executables
from .costs import Traffic, traffic_of


@dataclass(frozen=True, repr=False)
class Estimate:
    """The cost of a step on each device, in bytes. Printed, it is a table with larger units.

    Attributes:
        arguments: what it takes: parameters, buffers, gradients, the states of optimizers, the batch.
        outputs: what it gives beside what is written in place, which `arguments` has already.
        temporaries: what it needs in between.
        collectives: the number and bytes of each kind, as `collectives` returns them.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = jax.sharding.AbstractMesh((16,), ("data",))
        >>> with torch.device("meta"):
        ...     x = torch.empty(1024, 256)
        >>> found = distributed.estimate(torch.sin, distributed.distribute_batch(x, mesh), mesh=mesh)
        >>> found.arguments == 1024 * 256 * 4 // 16, found.total >= found.arguments + found.outputs
        (True, True)
    """

    arguments: int
    outputs: int
    temporaries: int
    collectives: dict[str, Traffic]

    @property
    def total(self) -> int:
        """The memory that a device must have for the step."""
        return self.arguments + self.outputs + self.temporaries

    def __repr__(self) -> str:
        memory = [(n, getattr(self, n)) for n in ("arguments", "outputs", "temporaries", "total")]
        lines = [f"{name + ':':<20}{_readable(size):>12}" for name, size in memory]
        for kind, traffic in self.collectives.items():
            if traffic.number:
                lines.append(f"{kind + ':':<20}{_readable(traffic.bytes):>12} in {traffic.number:,}")
        return "\n".join(["on each device", *lines])


def _readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.4g} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def estimate(fn: Callable[..., Any], *args: Any, mesh: AnyMesh, **kwargs: Any) -> Estimate:
    """The memory and the collectives of a step on each device of a mesh. The mesh need not be there.

    The step is traced and compiled as for a call after the first: with gradients, if it leaves them, and with the
    states of optimizers. Nothing is run, allocated, moved or changed.

    Args:
        fn: a function or a module of tensors over the mesh, which is compiled as a whole; or a function of
            `compile_step`. It may call `backward()` and optimizers.
        args, kwargs: those of the call. Of tensors on the CPU and on "meta" only shapes and dtypes are read; each
            device has a copy of them, unless `distribute_batch` has partitioned them.
        mesh: a `jax.sharding.AbstractMesh` of at most 2,048 devices, over which `parallelize_module`, `fully_shard`,
            `distribute_tensor` and `distribute_batch` make tensors without values. Or a mesh of devices, over which
            tensors have theirs.

    Returns:
        An `Estimate`. Temporaries are those of XLA's compiler for the CPU; another platform has other kernels. The
        states of optimizers are partitioned as their parameters if they have their shape, else copied to each device.

    Raises:
        UnsupportedInputError: tensors over another mesh; a module that was not moved to the mesh; a mesh with too many
            devices; the function reads the value of a tensor.
        RuntimeError: tensors over two meshes.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = jax.sharding.AbstractMesh((256,), ("data",))
        >>> with torch.device("meta"):
        ...     model, batch = torch.nn.Linear(4096, 4096, bias=False), torch.empty(512, 4096)
        >>> model, batch = distributed.fully_shard(model, mesh), distributed.distribute_batch(batch, mesh)
        >>> found = distributed.estimate(lambda x: model(x).sum(), batch, mesh=mesh)
        >>> found.arguments == 4096 * 4096 * 4 // 256 + 2 * 4096 * 4
        True
    """
    mesh = partitioned.auto_mesh(mesh)
    step = fn if isinstance(fn, Step) else Step(fn, ())
    where = NamedSharding(mesh, PartitionSpec())
    absent = _devices(mesh.size) if isinstance(mesh, AbstractMesh) else None
    lowered, text = step.lowered_over(where, absent and absent[0], args, kwargs)
    if absent is None:
        executable, _ = executables.compiled(lowered)
    else:
        executable = executables.compiled_for_absent(lowered, text, absent)
    memory: Any = executable.memory_analysis()
    return Estimate(
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        traffic_of(executable),
    )


def _devices(count: int) -> tuple[Any, ...]:
    if count > cpu_client.MOST_ABSENT:
        raise UnsupportedInputError("mesh", f"one of {count:,} devices", f"one of at most {cpu_client.MOST_ABSENT:,}")
    return cpu_client.absent(count)
