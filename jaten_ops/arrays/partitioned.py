"""Arrays on several devices: each device has a part of the values, or a copy, as the array's sharding says.

JAX's compiler partitions the programs that such arrays go into. What it leaves open is settled here: where a tensor
that is written to stays, and where arrays of one device go that meet partitioned ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from ..errors import MissingValuesError, UnsupportedInputError
from ..xla.equations import programs_of
from ..xla.x64 import Enabled
from .abstract_arrays import AbstractArray, AnyMesh, is_abstract

MET: list[Sharding] = []
"""The shardings over several devices that tensors have had so far: empty in most processes."""


AT_FIRST: list[Callable[[], None]] = []
"""Functions that are called, once, when MET gets its first sharding."""


def note(sharding: Sharding) -> None:
    """Adds a sharding to MET if it is over several devices."""
    if sharding.num_devices > 1 and sharding not in MET:
        MET.append(sharding)
        while AT_FIRST:
            AT_FIRST.pop()()


def is_partitioned(array: Any) -> bool:
    """True if an array is on several devices. For JAX's tracers False: their places are the compiler's choice."""
    return not isinstance(array, jax.core.Tracer) and array.sharding.num_devices > 1


def kept_in_place(new: Any, old: Any) -> Any:
    """The values that replace others, moved to where those are if they are partitioned and of the same shape.

    Raises:
        MissingValuesError: an array that has values would be replaced by one that has none.
    """
    if isinstance(new, AbstractArray) and not isinstance(old, AbstractArray | jax.core.Tracer):
        raise MissingValuesError
    if isinstance(new, jax.core.Tracer) or not is_partitioned(old) or new.shape != old.shape:
        return new
    return new if new.sharding == old.sharding else put_over(new, old.sharding)


@functools.cache
def auto_mesh(mesh: AnyMesh) -> AnyMesh:
    """A mesh with the same devices and axes, over which the compiler partitions programs by itself."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    if AxisType.Manual in mesh.axis_types:
        raise UnsupportedInputError("mesh", mesh, "one with Auto axes: jaten_ops.distributed.make_mesh")
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=auto)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)


def with_auto_axes(array: jax.Array) -> jax.Array:
    """The array, over a mesh with Auto axes if its own has others; nothing is copied."""
    if isinstance(array, jax.core.Tracer):
        kinds = jax.typeof(array).sharding.mesh.axis_types
        if AxisType.Explicit in kinds:
            raise UnsupportedInputError(
                "an array", "one that JAX traces over a mesh with Explicit axes",
                "one over Auto axes: jaten_ops.distributed.make_mesh, or jax.make_mesh with axis_types",
            )  # fmt: skip
        return array
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding) or auto_mesh(sharding.mesh) is sharding.mesh:
        return array
    return moved(array, NamedSharding(auto_mesh(sharding.mesh), sharding.spec))


def common_sharding(arrays: Iterable[Any]) -> Sharding | None:
    """The sharding of the first partitioned array; None if there is none, or if others are on other devices.

    Raises:
        RuntimeError: arrays over two meshes.
    """
    found = [a.sharding for a in arrays if is_partitioned(a)]
    if not found:
        return None
    for other in found[1:]:
        if not same_devices(found[0], other):
            raise RuntimeError(
                f"Expected all tensors to be on the same mesh, but found two, {found[0]} and {other}!"
                " (move one with jaten_ops.distributed.distribute_tensor(...))"
            )
    return found[0]


def constraint_in(program: core.Jaxpr) -> Sharding | None:
    """A sharding that a traced program gives one of its values; None if it gives none over several devices."""
    for equation in program.eqns:
        if equation.primitive.name == "sharding_constraint" and equation.params["sharding"].num_devices > 1:
            found: Sharding = equation.params["sharding"]
            return found
        for inner in programs_of(equation):
            sharding = constraint_in(inner)
            if sharding is not None:
                return sharding
    return None


def mesh_of(array: Any) -> AnyMesh:
    """The mesh of an array over several devices, also of one that JAX traces.

    JAX tells of a traced array the axes alone, so that the mesh is the one with these that tensors have had.

    Raises:
        RuntimeError: it is on one device; or tensors have had several such meshes.
    """
    if not isinstance(array, jax.core.Tracer):
        return array.sharding.mesh  # type: ignore[no-any-return]  # a NamedSharding's
    axes = dict(jax.typeof(array).sharding.mesh.shape)
    over = [s.mesh for s in MET if isinstance(s, NamedSharding) and dict(s.mesh.shape) == axes]
    found = list(dict.fromkeys(auto_mesh(mesh) for mesh in over))
    if len(found) != 1:
        which = f"over one of {len(found)} meshes with the axes {axes}" if found else "not known to be over a mesh"
        raise RuntimeError(f"redistribute: a tensor in a program is {which}. Fix: name it, redistribute(mesh, ...)")
    return found[0]


def first_device(sharding: Sharding) -> Any:
    """The first device of this process among those of a sharding."""
    devices: Any = sharding.addressable_devices
    return min(devices, key=lambda device: device.id)


def same_devices(one: Sharding, other: Sharding) -> bool:
    """True if two shardings are over the same devices in the same order, so that one program takes both."""
    return _devices(one) == _devices(other)


def _devices(sharding: Sharding) -> list[Any]:
    if is_abstract(sharding):
        return list(range(sharding.num_devices))
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        return list(sharding.mesh.devices.flat)
    devices: Any = sharding.device_set
    return sorted(devices, key=lambda device: device.id)


def moved(array: Any, where: Any) -> jax.Array:
    """An array, or values, on a device or with a sharding.

    While JAX's 64-bit types are off, `jax.device_put` gives a partitioned array of float64 parts of float32, and calls
    it float64: a program that reads it reads beyond its memory.
    """
    with Enabled():
        return jax.device_put(array, where)


def put_beside(values: np.ndarray, array: jax.Array) -> jax.Array:
    """Values on the device of an array; if that is partitioned, a copy for each of its devices.

    Raises:
        jax.errors.TracerArrayConversionError: JAX traces a program, in which the array has no values, or device.
    """
    if isinstance(array, jax.core.Tracer):
        raise jax.errors.TracerArrayConversionError(array)
    if is_partitioned(array):
        return put_over(values, replicated(array.sharding))
    return moved(values, first_device(array.sharding))


def values_on_host(array: Any) -> np.ndarray | None:
    """The values of an array on a single CPU device, in its memory; None for any other, and for one without values."""
    if isinstance(array, jax.core.Tracer | AbstractArray) or type(array.sharding) is not SingleDeviceSharding:
        return None
    return np.asarray(array) if first_device(array.sharding).platform == "cpu" else None


def put_over(array: Any, sharding: Sharding) -> Any:
    """An array with a sharding. If that is over several processes, all of them must call it with the same values.

    Over a mesh that is not there it is an abstract array, as is one of an abstract array.
    """
    if is_abstract(sharding) or isinstance(array, AbstractArray):
        return AbstractArray(array.shape, array.dtype, sharding)
    if sharding.is_fully_addressable:
        return moved(array, sharding)
    with Enabled():
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.jit(lambda x: x, out_shardings=sharding)(array)  # `device_put` would need a network of devices
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])


def beside(array: Any, others: Sequence[Any], sharding: Sharding) -> Any:
    """An array of one device, moved to the devices of a sharding, for a program that also takes others.

    It is partitioned as the first of the partitioned others that has its shape, such as the parameter of an optimizer's
    state; without one, each device gets a copy.
    """
    like = next((a.sharding for a in others if is_partitioned(a) and a.shape == array.shape), None)
    return put_over(array, like or replicated(sharding))


def together(*arrays: Any) -> tuple[Any, ...]:
    """Arrays that one program takes: those of one device are moved to the mesh of the others.

    Raises:
        RuntimeError: they are on two meshes.
    """
    mesh = common_sharding(arrays)
    if mesh is None:
        return arrays
    return tuple([
        a if isinstance(a, jax.core.Tracer) or is_partitioned(a) else beside(a, arrays, mesh) for a in arrays
    ])  # fmt: skip


@functools.cache
def replicated(sharding: Sharding) -> Sharding:
    """The sharding over the same devices that gives each of them a copy."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return NamedSharding(Mesh(_devices(sharding), ("devices",), axis_types=(AxisType.Auto,)), PartitionSpec())


def as_traced(array: jax.Array | AbstractArray) -> jax.core.ShapedArray:
    """Shape and dtype of an array in a trace, with its mesh, by which kernels tell that it is partitioned."""
    if not is_partitioned(array):
        return jax.core.ShapedArray(array.shape, array.dtype)
    if isinstance(array, AbstractArray):
        mesh = array.sharding.mesh  # type: ignore[attr-defined]  # a NamedSharding, since it is over several devices
        sharding = NamedSharding(getattr(mesh, "abstract_mesh", mesh), PartitionSpec(*[None] * array.ndim))
    else:
        sharding = jax.typeof(array).sharding
    return jax.core.ShapedArray(array.shape, array.dtype, sharding=sharding)
