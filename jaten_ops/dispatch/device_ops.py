"""Operators on the device `jax` that move values, alias them or make memory.

They are no kernels: nothing is computed, or tensors of two devices take part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

from .. import meta, registry
from ..arrays import bridge, carrier, uninitialized_values
from ..arrays.storage_views import View, resized, row_major
from ..arrays.view_ops import strides_in_format, strides_kept, strides_resized
from ..arrays.watching import WATCHERS, watcher
from ..device import privateuse1
from ..hooks import torchscript
from ..ops import define
from ..ops.namespace import operator_of
from ..ops.overlap import make_check
from ..schema import VARIANTS
from ..tensor import storage
from ..tensor.tensor import (
    HANDLERS,
    Tensor,
    array_of,
    become,
    from_array,
    from_view,
    has_values,
    is_row_major,
    is_traced,
    view_like,
)
from ..tracing import is_traced_now, out_of_sight
from .handlers import borrowed_copy, functional, is_on_jax, kernel_of, placed, store, to_carrier, variant

_aten = torch.ops.aten


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    if is_traced(tensor):  # ATen's op, of which functionalization knows that what is written to one is in the other
        inner = _aten.alias(to_carrier(tensor))
        return Tensor.of_inner(inner, tensor.stride()) if isinstance(tensor, Tensor) else Tensor(inner)
    return view_like(tensor, _same(carrier.view_of(tensor)), tensor.dtype)


def _clone(tensor: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """The same array, which never changes, in a storage of its own."""
    if is_traced(tensor) or not carrier.view_of(tensor).is_row_major() or memory_format not in _KEPT:
        return functional("clone")(tensor, memory_format=memory_format)
    return from_array(array_of(tensor))


_KEPT = (None, torch.preserve_format, torch.contiguous_format)


def _pack_padded_sequence(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, ...]:
    """The sizes of the batches are on the CPU, whatever the device."""
    data, sizes = functional("_pack_padded_sequence")(input, lengths, batch_first)
    return data, sizes if is_traced(sizes) else sizes.cpu()


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> torch.Tensor:
    empty = functional("empty.memory_format")([0], **options)
    if is_traced(empty):
        return functional("empty_strided")(size, stride, **options)
    if not is_on_jax(empty):  # the call named another device
        return _aten.empty_strided(size, stride, **options)
    with out_of_sight():
        torch.empty_strided(size, stride, device="meta")  # which raises for sizes and strides that are none
    return from_view(resized(carrier.view_of(empty), tuple(size), tuple(stride)), empty.dtype)


def _new_empty_strided(like: torch.Tensor, size: Sequence[int], stride: Sequence[int], **options: Any) -> torch.Tensor:
    if is_traced(like):  # by the operand: autograd asks for it where no mode makes what comes of nothing a fake one
        return functional("new_empty_strided")(like, size, stride, **options)
    return _empty_strided(size, stride, **({"dtype": like.dtype, "device": like.device} | options))


def _empty(size: Sequence[int], *, memory_format: Any = None, **options: Any) -> torch.Tensor:
    if memory_format in (None, torch.contiguous_format):
        return functional("empty.memory_format")(size, **options)
    return _empty_strided(size, strides_in_format(memory_format, size), **options)


def _empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> torch.Tensor:
    laid_out = torch.empty_permuted(tuple(size), tuple(physical_layout), device="meta")
    return _empty_strided(size, laid_out.stride(), **options)


_MADE: dict[str, Callable[..., torch.Tensor]] = {
    "empty.memory_format": _empty,
    "empty_permuted": _empty_permuted,
    "empty_strided": _empty_strided,
    "new_empty_strided": _new_empty_strided,
}


def _unwritten(overload: str) -> Callable[..., torch.Tensor]:
    """An operator whose result nothing is written to, filled where torch is to. In programs the backend does that."""

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        result = (_MADE.get(overload) or functional(overload))(*args, **kwargs)
        if uninitialized_values.is_filled() and not is_traced(result):
            # not by the dispatcher, out of whose sight torch.tensor makes its result
            variant("fill_.Scalar")(result, uninitialized_values.value_of(result.dtype))
        return result

    return call


def _same(view: View) -> View:
    return View(view.storage, view.shape, view.strides(), view.offset)


_check_copy = cast(Callable[..., None], make_check(VARIANTS["copy_"], registry.SPECS["copy"], ["self"]))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of one storage."""
    if one is other:
        return True
    if is_traced(other) or one.dtype != other.dtype:
        return False
    a, b = carrier.view_of(one), carrier.view_of(other)
    return a.storage is b.storage and (a.offset, a.shape, a.strides()) == (b.offset, b.shape, b.strides())


def _copy_(target: torch.Tensor, source: torch.Tensor | complex, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(source, torch.Tensor):  # a number, as ATen takes one here
        return target.fill_(source)
    if not is_on_jax(target):  # out of the device: torch's memory is written
        return target.copy_(bridge.export(array_of(source)))
    if is_traced(target):
        to_carrier(target).copy_(to_carrier(source) if is_on_jax(source) else source)
        return target
    if source.device != target.device:
        if source.is_meta:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")  # module.to waits for these words
        source = from_array(privateuse1.put(borrowed_copy(source), target.device))
    if _is_same(target, source):  # before ATen asks whether elements share memory
        return target
    _check_copy({"self": target, "src": source})
    if source.shape == target.shape and not is_traced(source):  # arrays never change: both may have the same
        store(target, source)
    else:
        store(target, functional("copy")(target, source))
    return target


def _to_copy(tensor: torch.Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    if not kwargs and dtype is not None and is_row_major(tensor):
        return kernel_of("_to_copy")(tensor, dtype=dtype)
    if dtype is not None:
        kwargs["dtype"] = dtype
    wanted = kwargs.get("device")
    if wanted is None or torch.device(wanted).type == "jax":
        return placed(functional("_to_copy")(tensor, **(kwargs | {"device": None})), wanted)
    kept = {k: v for k, v in kwargs.items() if k not in ("non_blocking", "layout", "pin_memory")}
    if is_traced(tensor):
        return torch.ops.aten._to_copy(to_carrier(tensor), **kept)
    # which copies: what torch may write to is never a jax.Array's own memory
    return torch.ops.aten._to_copy(_in_its_strides(tensor), **(kept | {"device": wanted}))


def _in_its_strides(tensor: torch.Tensor) -> torch.Tensor:
    """The values as a tensor on the CPU that lies as `clone` of the tensor does."""
    exported, view = bridge.export(array_of(tensor)), carrier.view_of(tensor)
    if view.is_row_major():
        return exported
    stride = strides_kept(view.shape, view.strides())
    return torch.empty_strided(view.shape, stride, dtype=exported.dtype).copy_(exported)


def _lift_fresh(tensor: torch.Tensor) -> torch.Tensor:
    """`torch.tensor` makes its result out of sight of the modes, and shows it to them by this.

    What captures a program is shown a constant of the CPU and its way to the device: a real tensor of the device has
    no place in a graph.
    """
    if not is_traced_now() or is_traced(tensor):
        return _alias(tensor)
    with out_of_sight():
        plain = bridge.export(array_of(tensor)).clone()
    return torch.ops.aten._to_copy(torch.ops.aten.lift_fresh(plain), device=tensor.device)


def _local_scalar_dense(tensor: torch.Tensor) -> Any:
    if is_traced(tensor):
        return torch.ops.aten._local_scalar_dense(to_carrier(tensor))
    array = array_of(tensor)
    watched = watcher() if WATCHERS else None
    return array.item() if watched is None else watched.read(array)


def _linalg_check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Where there are values, ATen says which matrix was singular, and where."""
    if has_values(info):
        _aten._linalg_check_errors(bridge.export(array_of(info)), api_name, is_matrix=is_matrix)
    else:
        functional("_linalg_check_errors")(info, api_name, is_matrix=is_matrix)


def _native_batch_norm(*args: Any, **kwargs: Any) -> Any:
    """ATen's op writes to the running statistics, though its schema does not say so."""
    values = define.Signature(registry.SPECS["native_batch_norm"]).bind(args, kwargs)
    input, weight, bias, running_mean, running_var, training, momentum, eps = values
    if not training or running_mean is None:
        return functional("native_batch_norm")(*values)
    normalize = functional("_native_batch_norm_legit_functional")
    *results, mean, var = normalize(input, weight, bias, running_mean, running_var, training, momentum, eps)
    store(running_mean, mean)
    store(running_var, var)
    return tuple(results)


def _resize_(
    tensor: torch.Tensor, size: Sequence[int], *, like: torch.Tensor | None = None, memory_format: Any = None
) -> torch.Tensor:
    if is_traced(tensor):
        to_carrier(tensor).resize_(size, memory_format=memory_format)
        return tensor
    view = carrier.view_of(tensor)
    stride = strides_resized(view, size, like, memory_format)
    if (tuple(size), stride) != (view.shape, view.strides()):
        become(tensor, resized(view, tuple(size), stride, uninitialized_values.value_of(tensor.dtype)), tensor.dtype)
    return tensor


def _resize_as_(tensor: torch.Tensor, like: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    return _resize_(tensor, like.shape, like=like, memory_format=memory_format)


def _set_(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if is_traced(tensor):
        # torch captures no such change of a subclass's tensor; at this error Dynamo breaks the graph
        raise UnsupportedFakeTensorException("set_, or x.data = y, on the device jax: write x.copy_(y) in its place")
    become(tensor, _same(carrier.view_of(source)), source.dtype)
    return tensor


def _set_part_(
    tensor: torch.Tensor, source: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """Into the memory of another tensor, or of a storage."""
    shape = tuple(size)
    strides = tuple(stride) or row_major(shape)
    if isinstance(source, torch.Tensor):
        view, dtype = View(carrier.view_of(source).storage, shape, strides, offset), source.dtype
    else:
        view, dtype = storage.view_in(source, tensor.dtype, offset, shape, strides), tensor.dtype
    become(tensor, resized(view, shape, strides), dtype)
    return tensor


def _set_storage_(tensor: torch.Tensor, source: Any) -> torch.Tensor:
    become(tensor, storage.whole(source, tensor.dtype), tensor.dtype)
    return tensor


def _set_nothing_(tensor: torch.Tensor) -> torch.Tensor:
    become(tensor, carrier.view_of(functional("empty.memory_format")([0], dtype=tensor.dtype)), tensor.dtype)
    return tensor


def _is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    one, two = carrier.view_of(tensor), carrier.view_of(other)
    same = one.shape == two.shape and one.strides() == two.strides() and one.offset == two.offset
    return same and one.storage is two.storage


def _refuse_to_pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    raise RuntimeError(f"cannot pin a tensor on {tensor.device}: only dense CPU tensors can be pinned")


def _with_scalars(overload: str) -> Callable[..., Any]:
    """An operator on lists with a number for each element in a tensor, which is on the CPU, whatever the device."""

    def call(self: Any, tensor1: Any, tensor2: Any, scalars: torch.Tensor) -> Any:
        run = variant(overload) if overload.endswith("_.Tensor") else functional(overload)
        return run(self, tensor1, tensor2, _aten._to_copy(scalars, device=self[0].device))

    return call


def _no_nested(overload: str) -> Callable[..., Any]:
    """An operator of which ATen's own composition, or view, would be a nested tensor."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise registry.missing(f"aten::{overload}")

    return refuse


_NESTED = ("_nested_tensor_from_tensor_list", "_nested_view_from_buffer")

HANDLERS.update(
    {
        _aten.detach.default: _alias,
        _aten.alias.default: _alias,
        _aten.lift_fresh.default: _lift_fresh,
        _aten.detach_.default: lambda tensor: tensor,
        _aten.clone.default: _clone,
        _aten.copy_.default: _copy_,
        _aten._to_copy.default: _to_copy,
        _aten._linalg_check_errors.default: _linalg_check_errors,
        _aten.native_batch_norm.default: _native_batch_norm,
        _aten._local_scalar_dense.default: _local_scalar_dense,
        _aten.resize_.default: _resize_,
        _aten.resize_as_.default: _resize_as_,
        _aten._convolution.default: torchscript.convolve,
        _aten.set_.source_Tensor: _set_,
        _aten.set_.source_Tensor_storage_offset: _set_part_,
        _aten.set_.default: _set_nothing_,
        _aten.set_.source_Storage: _set_storage_,
        _aten.set_.source_Storage_storage_offset: _set_part_,
        _aten._pack_padded_sequence.default: _pack_padded_sequence,
        **{operator_of(overload, "aten"): _unwritten(overload) for overload in uninitialized_values.OVERLOADS},
        **{operator_of(overload, "aten"): _with_scalars(overload) for overload in meta.scalars.OVERLOADS},
        **{operator_of(overload, "aten"): _no_nested(overload) for overload in _NESTED},
        _aten.is_set_to.default: _is_set_to,
        _aten.is_same_size.default: lambda tensor, other: tensor.shape == other.shape,  # of tensors anywhere
        # what C++ code asks that takes no symbols: they become numbers, as for torch's own fake tensors
        _aten.size.default: lambda tensor: tuple(map(int, tensor.shape)),
        _aten.stride.default: lambda tensor: tuple(map(int, tensor.stride())),
        _aten.storage_offset.default: lambda tensor: int(tensor.storage_offset()),
        _aten._pin_memory.default: _refuse_to_pin,
        # whether torch may make a nested tensor, which is not one array: nn.TransformerEncoder takes the mask then
        _aten._nested_tensor_from_mask_left_aligned.default: lambda tensor, mask: False,
    }
)
