"""torch.Tensor <-> jax.Array, dtypes and devices; with `gpu_memory` the only place that touches dlpack.

Memory is shared both ways if possible. A borrowed array must not outlive the tensor's next in-place write, unless that
write should be visible; an exported tensor owns the array's buffer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.dlpack
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Sharding, SingleDeviceSharding
from torch.utils import dlpack as torch_dlpack

from ..errors import MissingValuesError, UnsupportedInputError
from ..xla import cheap_puts
from ..xla.traced_constants import constant_value
from ..xla.x64 import Enabled
from . import gpu_memory, partitioned
from .abstract_arrays import is_abstract
from .gpu_memory import buffer_to_dlpack_managed_tensor as _buffer_to_capsule
from .gpu_memory import dlpack_managed_tensor_to_buffer as _capsule_to_buffer
from .observers import known_values

DTYPES: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(bool),
    **{
        getattr(torch, n): np.dtype(n)
        for n in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
    },
    **{getattr(torch, n): np.dtype(n) for n in ("float16", "float32", "float64", "complex64", "complex128")},
    torch.bfloat16: np.dtype(jnp.bfloat16),
    **{
        getattr(torch, n): np.dtype(getattr(jnp, n))
        for n in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    },
}
"""The numpy dtype of each torch dtype that JAX can hold."""

TORCH_DTYPES: dict[np.dtype, torch.dtype] = {v: k for k, v in DTYPES.items()}

ALIGNMENT = 64
"""The number of bytes of which an address has to be a multiple, for JAX to take the memory without a copy."""

_NOT_IN_DLPACK = {dtype for dtype in DTYPES if dtype.is_floating_point and dtype.itemsize == 1}
_NUMPY_HOLDS = {dtype for dtype, held in DTYPES.items() if held.kind in "biuf"} - _NOT_IN_DLPACK
_cpu: Any = None


def to_numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype of a torch dtype.

    Raises:
        UnsupportedInputError: JAX has no such dtype (quantized types, complex32).
    """
    found = DTYPES.get(dtype)
    if found is None:
        raise UnsupportedInputError("dtype", dtype, "a dtype that JAX has; convert the tensor with .to(...)")
    return found


def cpu_device() -> Any:
    """JAX's first CPU device; the first call starts JAX's backends."""
    global _cpu
    if _cpu is None:
        _cpu = jax.local_devices(backend="cpu")[0]
    return _cpu


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values as a contiguous tensor without lazy conjugation or negation, in the same memory if possible."""
    if tensor.layout is not torch.strided:
        raise UnsupportedInputError("tensor layout", tensor.layout, "torch.strided; convert it with .to_dense()")
    if tensor._is_zerotensor():  # autograd's zero tensors have no memory
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.resolve_conj().resolve_neg().contiguous()


def is_on_host(device: Any) -> bool:
    """True if a JAX device computes in the memory of CPU tensors."""
    return bool(device.platform == "cpu")


@functools.cache
def _computes_on_host() -> bool:
    """True if JAX's default device is a CPU."""
    return is_on_host(jax.local_devices()[0])


@functools.cache
def _has_only_the_host() -> bool:
    """True if JAX's default device is a CPU, and there is no other."""
    return _computes_on_host() and len(jax.local_devices()) == 1


def uncommitted(tensor: torch.Tensor) -> jax.Array:
    """A CPU tensor, which must not change any more, as an array of JAX's default device.

    The array is not committed to the device: beside others it is moved to theirs. If that is the only device, and a
    CPU, it shares the memory as `borrow` does. A CUDA tensor stays on its GPU.
    """
    if tensor.device.type != "cpu":
        return borrow(tensor)
    if _has_only_the_host():
        array = borrow(tensor)
        if not cheap_puts.can_put():
            return array
        return cheap_puts.put_on_device(array, array.aval, cpu_device(), committed=False)
    with Enabled(), jax.ensure_compile_time_eval():  # a value, even if JAX traces a program that takes it
        return jax.device_put(np.asarray(borrow(tensor)))


def borrow(tensor: torch.Tensor, place: Any = None) -> jax.Array:
    """A dense CPU or CUDA tensor as a `jax.Array`.

    Shares the memory if the tensor is contiguous and its address a multiple of 64 bytes (`shares_memory` tells);
    copies otherwise. Never narrows a dtype.

    Args:
        tensor: the tensor.
        place: the JAX device for a CPU tensor, to which it is copied if that has memory of its own; None for JAX's
            first CPU device. A sharding copies the values to its devices.

    Raises:
        UnsupportedInputError: a layout or dtype that JAX does not have.
    """
    if isinstance(place, Sharding):
        with Enabled():
            return partitioned.put_over(borrow(tensor), place).copy()  # a part might share the memory
    if place is not None and tensor.device.type == "cpu" and not is_on_host(place):
        with jax.ensure_compile_time_eval():
            return partitioned.moved(borrow(tensor), place)
    if tensor.dtype not in DTYPES:
        raise UnsupportedInputError("tensor dtype", tensor.dtype, "a dtype that JAX has; convert it with .to(...)")
    tensor = _plain(tensor)
    if tensor.dtype in _NOT_IN_DLPACK:
        with Enabled():
            return borrow(tensor.view(torch.uint8), place).view(DTYPES[tensor.dtype])
    if _capsule_to_buffer is not None and tensor.device.type == "cpu":
        return _capsule_to_buffer(torch._C._to_dlpack(tensor), place or _cpu or cpu_device(), None)
    if _capsule_to_buffer is not None and tensor.is_cuda and tensor.numel():
        return gpu_memory.array_on_gpu(tensor)
    with Enabled():
        return jax.dlpack.from_dlpack(tensor.detach(), device=place if tensor.device.type == "cpu" else None)


def lend(tensor: torch.Tensor, place: Any) -> Any:
    """A CPU tensor as an operand of one call of a compiled function, which must end before the tensor changes.

    If the dtype allows, it is a NumPy array of the memory, which JAX takes without a copy at half the cost of `borrow`.
    JAX narrows arrays of 64-bit numbers unless these types are on (`is_wide`).
    """
    if tensor.dtype not in _NUMPY_HOLDS or tensor.layout is not torch.strided:
        return borrow(tensor, place)
    return borrow(tensor, place) if tensor.is_neg() or tensor._is_zerotensor() else in_numpy(tensor)


class _Memory:
    """A tensor's memory as NumPy asks for it."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_wanted: Any) -> Any:
        return torch._C._to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def in_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a CPU tensor of one of NumPy's dtypes, which no one may write to.

    Unlike after `tensor.numpy()`, the memory may grow later, as by `resize_` and `out=`. The array must not be in use
    by then.
    """
    return np.from_dlpack(_Memory(tensor))


def is_held_by_numpy(dtype: torch.dtype) -> bool:
    """True if NumPy itself has the dtype, and torch takes its arrays."""
    return dtype in _NUMPY_HOLDS


def is_lent_as_numpy(tensor: torch.Tensor) -> bool:
    """True if `lend` may return a NumPy array for tensors of this dtype."""
    return tensor.is_cpu and tensor.dtype in _NUMPY_HOLDS


def is_wide(value: Any) -> bool:
    """True if `lend` may return a NumPy array of 64-bit numbers for the value."""
    return isinstance(value, torch.Tensor) and is_lent_as_numpy(value) and value.dtype.itemsize == 8


def as_tensor(array: jax.Array) -> torch.Tensor:
    """A `jax.Array` as a tensor on the same hardware, sharing its memory; waits until the array is computed.

    An array of a GPU becomes a CUDA tensor; `to_host` makes a CPU tensor of any array. For an array on several devices
    it is a copy on one of them, since dlpack would export only the first one's part. If the devices are those of
    several processes, all of them must call it.
    """
    sharding = array.sharding
    if type(sharding) is not SingleDeviceSharding and (sharding.num_devices > 1 or is_abstract(sharding)):
        array = gathered(array)
    if not array.size:  # JAX's strides of an empty array differ from torch's
        (device,) = array.devices()
        kept = torch.device("cpu") if is_on_host(device) else torch.device("cuda", device.local_hardware_id)
        return torch.empty(array.shape, dtype=TORCH_DTYPES[array.dtype], device=kept)
    if TORCH_DTYPES[array.dtype] in _NOT_IN_DLPACK:
        with Enabled():
            return as_tensor(array.view(np.uint8)).view(TORCH_DTYPES[array.dtype])
    if _buffer_to_capsule is None:
        return torch_dlpack.from_dlpack(array)
    if torch.cuda.is_initialized() and not is_on_host(next(iter(array.devices()))):
        return gpu_memory.tensor_on_gpu(array)
    return torch._C._from_dlpack(_buffer_to_capsule(array))


def to_host(array: jax.Array) -> torch.Tensor:
    """A `jax.Array` of any device as a CPU tensor; waits until it is computed.

    It shares the memory of an array on a CPU. For an array on several devices it is a copy, as by `as_tensor`.

    Raises:
        jax.errors.TracerArrayConversionError: JAX traces a program, on whose operands it depends.
    """
    if isinstance(array, jax.core.Tracer):
        known = constant_value(array)
        found: Any = known_values(array) if known is None else known
        array = found
    if not hasattr(array, "sharding"):  # values of NumPy's, as which JAX keeps constants while it traces
        with Enabled(), jax.ensure_compile_time_eval():
            array = jax.device_put(np.asarray(array), cpu_device())
    sharding = array.sharding
    if type(sharding) is not SingleDeviceSharding and (sharding.num_devices > 1 or is_abstract(sharding)):
        array = gathered(array)
    (device,) = array.devices()
    if not is_on_host(device):
        with jax.ensure_compile_time_eval():
            array = partitioned.moved(array, cpu_device())
    return as_tensor(array)


def gathered(array: jax.Array) -> jax.Array:
    """An array on one device of this process, with all values of one that is on several."""
    sharding = array.sharding
    if is_abstract(sharding):
        raise MissingValuesError
    with jax.ensure_compile_time_eval():  # the values are there, even if JAX traces a program that reads them
        if sharding.is_fully_addressable:
            return partitioned.moved(array, partitioned.first_device(sharding))
        if not sharding.is_fully_replicated:
            with Enabled():
                array = jax.jit(lambda x: x, out_shardings=partitioned.replicated(sharding))(array)
    return array.addressable_data(0)


def exporter(
    dtype: torch.dtype, numel: int, kind: str = "cpu", *, spread: bool = False
) -> Callable[[jax.Array], torch.Tensor]:
    """A function that makes tensors of arrays of this dtype and size, decided beforehand.

    Args:
        dtype, numel: those of the arrays.
        kind: the type of the tensors' device, "cpu" or "cuda". Arrays of a program on another device are copied to the
            CPU.
        spread: whether the arrays may be on several devices.
    """
    if _buffer_to_capsule is None or not numel or dtype in _NOT_IN_DLPACK or spread:
        return as_tensor if kind != "cpu" else to_host
    if kind != "cpu":
        return gpu_memory.tensor_on_gpu
    if not _computes_on_host():
        return to_host
    capsule, tensor = _buffer_to_capsule, torch._C._from_dlpack
    return lambda array: tensor(capsule(array))


def shares_memory(array: jax.Array, tensor: torch.Tensor) -> bool:
    """True if an array made by `borrow` reads the tensor's own memory."""
    return array.unsafe_buffer_pointer() == tensor.data_ptr()
