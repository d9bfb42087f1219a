"""Operators that copy values: `clone`, `copy_`, `to`, onto the device `jax`, on it, and from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from .. import registry
from ..arrays import bridge, carrier
from ..arrays.view_ops import strides_kept
from ..device import placement
from ..ops.overlap import make_check
from ..registry.handlers import BELOW_PYTHON, handler
from ..schema import VARIANTS
from ..tensor.operand_values import constant_written, has_row_major_values, is_traced, stays
from ..tensor.tensor import array_of, from_array
from ..tracing import is_traced_now, out_of_sight
from .aliasing import alias
from .functional import functional, kernel_of, on_named_device
from .operands import borrowed_copy, is_on_jax, to_carrier
from .writes import store


@handler("aten::clone")
def clone(tensor: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """The same array, which is immutable, in a storage of its own."""
    if is_traced(tensor) or not carrier.view_of(tensor).is_plain() or memory_format not in _KEPT:
        return functional("clone")(tensor, memory_format=memory_format)
    return from_array(array_of(tensor))


_KEPT = (None, torch.preserve_format, torch.contiguous_format)

_check_copy = cast(Callable[..., None], make_check(VARIANTS["copy_"], registry.SPECS["copy"], ["self"]))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors are the same elements of one storage."""
    if one is other:
        return True
    if is_traced(other) or one.dtype != other.dtype:
        return False
    a, b = carrier.view_of(one), carrier.view_of(other)
    return a.storage is b.storage and (a.offset, a.shape, a.strides()) == (b.offset, b.shape, b.strides())


_WIDEST = {int: torch.int64, float: torch.float64, complex: torch.complex128}


def _converted(number: Any, dtype: torch.dtype) -> Any:
    """A number with the value of a tensor of it in another dtype; `fill_` refuses what a dtype cannot hold."""
    if type(number) not in _WIDEST:
        return number
    with out_of_sight():
        return torch.tensor(number, dtype=_WIDEST[type(number)]).to(dtype).item()


@handler("aten::copy_")
def copy_(target: torch.Tensor, source: torch.Tensor | complex, non_blocking: bool = False) -> torch.Tensor:
    """Copies the values of a tensor on any device, at once even with `non_blocking`."""
    if not isinstance(source, torch.Tensor):  # a number, which ATen accepts here
        return target.fill_(_converted(source, target.dtype))
    if not is_on_jax(target):  # out of the device: torch's memory is written
        values = array_of(source)
        if stays(source, values, target.device):
            raise constant_written()
        return target.copy_(bridge.to_host(values))
    if is_traced(target):
        to_carrier(target).copy_(to_carrier(source) if is_on_jax(source) else source)
        return target
    if source.device != target.device:
        if source.is_meta:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")  # module.to recognizes this message
        source = from_array(placement.put_on(borrowed_copy(source), target.device))
    if _is_same(target, source):  # before ATen asks whether elements share memory
        return target
    _check_copy({"self": target, "src": source})
    if source.shape == target.shape and not is_traced(source):  # arrays are immutable: both may share one
        store(target, source)
    else:
        store(target, functional("copy")(target, source))
    return target


@handler("aten::_copy_from", keys=(BELOW_PYTHON,))  # torch.tensor(data, device="jax") calls it below
def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`copy_`, for calls from C++."""
    return copy_(target, source)


@handler("aten::_to_copy")
def to_copy(tensor: torch.Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """A copy with another dtype, on another device, or in another memory format."""
    if not kwargs and dtype is not None and has_row_major_values(tensor):
        return kernel_of("_to_copy")(tensor, dtype=dtype)
    if dtype is not None:
        kwargs["dtype"] = dtype
    wanted = kwargs.get("device")
    if wanted is None or torch.device(wanted).type == "jax":
        # a graph names the device: a program's results are put there
        named = wanted if wanted is not None and torch.device(wanted).index is not None and is_traced(tensor) else None
        return on_named_device(functional("_to_copy")(tensor, **(kwargs | {"device": named})), wanted)
    kept = {k: v for k, v in kwargs.items() if k not in ("non_blocking", "layout", "pin_memory")}
    if is_traced(tensor):
        return torch.ops.aten._to_copy(to_carrier(tensor), **kept)
    if torch.device(wanted).type == "meta":  # no values are read, which may not be there yet, or be JAX's tracers
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return torch.ops.aten._to_copy(like, **kept)
    if stays(tensor, array_of(tensor), wanted):
        return functional("_to_copy")(tensor, **(kwargs | {"device": None}))
    # it copies: torch must not write to a jax.Array's own memory
    return torch.ops.aten._to_copy(_in_its_strides(tensor), **(kept | {"device": wanted}))


def _in_its_strides(tensor: torch.Tensor) -> torch.Tensor:
    """The values as a tensor on the CPU with the layout of `clone`."""
    exported, view = bridge.to_host(array_of(tensor)), carrier.view_of(tensor)
    if view.is_plain():
        return exported
    stride = strides_kept(view.shape, view.strides())
    return torch.empty_strided(view.shape, stride, dtype=exported.dtype).copy_(exported)


@handler("aten::lift_fresh")
def lift_fresh(tensor: torch.Tensor) -> torch.Tensor:
    """`torch.tensor` makes its result out of sight of the modes, and shows it to them by this.

    What captures a program is shown a constant of the CPU and its way to the device: a real tensor of the device has
    no place in a graph.
    """
    if not is_traced_now() or is_traced(tensor):
        return alias(tensor)
    with out_of_sight():
        plain = bridge.to_host(array_of(tensor)).clone()
        if tensor.numel() == 1:  # torch would compute with it, on the CPU, what the graph does on the device
            plain = torch.stack([plain, plain])
    made = torch.ops.aten._to_copy(torch.ops.aten.lift_fresh(plain), device=tensor.device)
    return torch.ops.aten.select_copy.int(made, 0, 0) if tensor.numel() == 1 else made  # not a view: torch detaches it


@handler("aten::_pin_memory")
def refuse_to_pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Raises RuntimeError, as torch does for tensors that are not on the CPU."""
    raise RuntimeError(f"cannot pin a tensor on {tensor.device}: only dense CPU tensors can be pinned")


def pin_on_cpu(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy, since JAX does not use pinned memory; for CUDA, if a program names it, ATen's own."""
    if (device is not None and torch.device(device).type != "jax") or torch.cuda.is_available():
        key = torch._C.DispatchKey.CompositeExplicitAutograd
        return torch.ops.aten._pin_memory.default._op_dk(key, tensor, device or "cuda")
    return tensor.clone()
