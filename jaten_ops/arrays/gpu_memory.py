"""CUDA tensors and arrays of the same memory of a GPU, with the streams of torch and of JAX in order.

torch and JAX queue their work on streams of their own. An array of a tensor's memory is ready when what torch has
queued until then is done: a program that takes it waits for that on the GPU, and so does all that it reads. A tensor of
an array's memory makes torch's current stream wait for the array.

JAX takes the memory of a freed tensor again at once, although what torch has queued may still read it. A program that
takes a tensor waits for that as well; another one has to be told (`after_torch`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..errors import UnsupportedInputError

# private: the public functions find stream and device anew, 100 microseconds for a CUDA tensor, and take seven times as
# long for a small one of the CPU
try:
    from jaxlib._jax import buffer_to_dlpack_managed_tensor, dlpack_managed_tensor_to_buffer
except ImportError:  # pragma: no cover  # a jaxlib that has moved them: `bridge` uses the public functions
    buffer_to_dlpack_managed_tensor = None  # type: ignore[assignment]  # in place of a function
    dlpack_managed_tensor_to_buffer = None  # type: ignore[assignment]  # in place of a function

_LEGACY_DEFAULT = 1  # in DLPack the name of CUDA's default stream, whose handle is 0


@functools.cache
def gpu_device(index: int) -> Any:
    """The JAX device of CUDA tensors with an index.

    Raises:
        UnsupportedInputError: JAX has no such GPU.
    """
    try:
        found = jax.local_devices(backend="gpu")
    except RuntimeError:
        found = []
    for device in found:
        if device.local_hardware_id == index:
            return device
    raise UnsupportedInputError(
        "device", f"cuda:{index}, where JAX has {len(found)} GPUs",
        "the GPU in JAX as well (its package for your CUDA, such as jax[cuda13]), or tensors of the CPU",
    )  # fmt: skip


@functools.cache
def _waiting_stream(index: int) -> tuple[Any, int, torch.cuda.Stream]:
    """The JAX device, and the stream, by its handle and for torch, whose work comes before an array is ready."""
    device = gpu_device(index)
    handle = device.get_stream_for_external_ready_events()
    return device, handle, torch.cuda.ExternalStream(handle, device=torch.device("cuda", index))


def array_on_gpu(tensor: torch.Tensor) -> jax.Array:
    """The array of a contiguous CUDA tensor's memory, ready after what is queued on torch's current stream."""
    index = tensor.device.index
    device, handle, waiting = _waiting_stream(index)
    waiting.wait_stream(torch.cuda.current_stream(index))
    return dlpack_managed_tensor_to_buffer(torch._C._to_dlpack(tensor), device, handle)


def tensor_on_gpu(array: jax.Array) -> torch.Tensor:
    """The CUDA tensor of an array's memory; torch's current stream waits for the array."""
    (device,) = array.devices()
    stream = torch.cuda.current_stream(device.local_hardware_id).cuda_stream or _LEGACY_DEFAULT
    return torch._C._from_dlpack(buffer_to_dlpack_managed_tensor(array, stream))


def after_torch(run: Callable[..., Any]) -> Callable[..., Any]:
    """A program that takes no CUDA tensor, and begins when what torch has queued on its current stream is done."""

    def run_then(*operands: Any) -> Any:
        torch.cuda.current_stream().synchronize()
        return run(*operands)

    return run_then
