"""Operators on the device `jax` that move values, alias them or make memory, and what torch's dispatcher is told.

They are no kernels: nothing is computed, or tensors of two devices take part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jax._src import xla_bridge  # private: nothing public tells whether JAX has started
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch.utils._pytree import tree_leaves

from . import (
    bridge,
    carrier,
    device,
    higher_order,
    library,
    recording,
    recurrent,
    registry,
    scripting,
    storage,
    uninitialized,
    unwritten,
    x64,
)
from .aliasing import View, resized, row_major
from .dispatch import borrowed_copy, functional, is_on_jax, kernel_of, placed, store, to_carrier, variant
from .errors import UnsupportedInputError
from .lazy import operator_of
from .overlap import make_check
from .schema import VARIANTS
from .tensor import (
    HANDLERS,
    Tensor,
    array_of,
    become,
    exchange,
    from_array,
    from_view,
    is_row_major,
    is_traced,
    make_handler,
    may_leave,
    view_like,
)
from .tracing import is_traced_now, keep_out_of_constants, opaque, out_of_sight
from .view_ops import strides_in, strides_kept, strides_resized

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
    return _empty_strided(size, strides_in(memory_format, size), **options)


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
        if unwritten.is_filled() and not is_traced(result):
            # not by the dispatcher, out of whose sight torch.tensor makes its result
            variant("fill_.Scalar")(result, unwritten.value_of(result.dtype))
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
        source = from_array(device.put(borrowed_copy(source), target.device))
    if _is_same(target, source):  # before ATen asks whether elements share memory
        return target
    _check_copy({"self": target, "src": source})
    store(target, functional("copy")(target, source))
    return target


def _to_copy(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    if len(kwargs) == 1 and "dtype" in kwargs and is_row_major(tensor):
        return kernel_of("_to_copy")(tensor, **kwargs)
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
    return array_of(tensor).item()


def _native_batch_norm(*args: Any, **kwargs: Any) -> Any:
    """ATen's op writes to the running statistics, though its schema does not say so."""
    values = library.Signature(registry.SPECS["native_batch_norm"]).bind(args, kwargs)
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
        become(tensor, resized(view, tuple(size), stride, unwritten.value_of(tensor.dtype)), tensor.dtype)
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


HANDLERS.update(
    {
        _aten.detach.default: _alias,
        _aten.alias.default: _alias,
        _aten.lift_fresh.default: _lift_fresh,
        _aten.detach_.default: lambda tensor: tensor,
        _aten.clone.default: _clone,
        _aten.copy_.default: _copy_,
        _aten._to_copy.default: _to_copy,
        _aten.native_batch_norm.default: _native_batch_norm,
        _aten._local_scalar_dense.default: _local_scalar_dense,
        _aten.resize_.default: _resize_,
        _aten.resize_as_.default: _resize_as_,
        _aten._convolution.default: scripting.convolve,
        _aten.set_.source_Tensor: _set_,
        _aten.set_.source_Tensor_storage_offset: _set_part_,
        _aten.set_.default: _set_nothing_,
        _aten.set_.source_Storage: _set_storage_,
        _aten.set_.source_Storage_storage_offset: _set_part_,
        _aten._pack_padded_sequence.default: _pack_padded_sequence,
        **{operator_of(overload, "aten"): _unwritten(overload) for overload in unwritten.OVERLOADS},
        _aten.is_set_to.default: _is_set_to,
        _aten.is_same_size.default: lambda tensor, other: tensor.shape == other.shape,  # of tensors anywhere
        # what C++ code asks that takes no symbols: they become numbers, as for torch's own fake tensors
        _aten.size.default: lambda tensor: tuple(map(int, tensor.shape)),
        _aten.stride.default: lambda tensor: tuple(map(int, tensor.stride())),
        _aten.storage_offset.default: lambda tensor: int(tensor.storage_offset()),
        _aten._pin_memory.default: lambda tensor, device=None: _pin_memory(tensor),
        # whether torch may make a nested tensor, which is not one array: nn.TransformerEncoder takes the mask then
        _aten._nested_tensor_from_mask_left_aligned.default: lambda tensor, mask: False,
    }
)

_ATEN = torch.library.Library("aten", "IMPL")
_FALLBACK = torch.library.Library("_", "IMPL")


@opaque
def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_traced_now():
        for value in tree_leaves((args, kwargs)):
            if type(value) in (torch.Tensor, torch.nn.Parameter) and is_on_jax(value):
                carrier.view_of(value)  # raises for one that C++ has made
    return (HANDLERS.get(func) or make_handler(func))(*args, **kwargs)


@opaque
def _no_array(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator on what torch makes on the device without asking: tensors that are not one dense array."""
    got = next((t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and is_on_jax(t)), None)
    if got is None:  # a factory
        raise UnsupportedInputError(func.name(), "the device jax", "another one: there are dense tensors on jax alone")
    kind = "nested" if got.is_nested else "quantized" if got.is_quantized else str(got.layout).removeprefix("torch.")
    expected = "a dense one, as x.to_dense() is before it is moved, or a nested one with layout=torch.jagged"
    raise UnsupportedInputError(func.name(), f"a {kind} tensor on {got.device}", expected)


_NO_ARRAYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1", "NestedTensorPrivateUse1", "QuantizedPrivateUse1")


def _factory(overload: str) -> Callable[..., Any]:
    special = _unwritten(overload) if overload in unwritten.OVERLOADS else None

    def make(*args: Any, **kwargs: Any) -> Any:
        return (special or functional(overload))(*args, **kwargs)

    return opaque(make)


# With tensors of a subclass, ATen's compositions do not write to out, or copy it to itself in another shape.
_NOT_ATENS = frozenset({"linalg_matrix_rank", "matmul", "linalg_matmul"})


def _written_out(overload: str) -> Callable[..., Any]:
    def write(*args: Any, **kwargs: Any) -> Any:
        return variant(overload)(*args, **kwargs)

    return opaque(write)


@opaque
def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return _copy_(target, source)


@opaque
def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy: JAX has no use for pinned memory. For CUDA, which torch asks if a program names it, ATen's own."""
    if is_on_jax(tensor):
        raise RuntimeError(f"cannot pin a tensor on {tensor.device}: only dense CPU tensors can be pinned")
    if (device is not None and torch.device(device).type != "jax") or torch.cuda.is_available():
        key = torch._C.DispatchKey.CompositeExplicitAutograd
        return _aten._pin_memory.default._op_dk(key, tensor, device or "cuda")
    return tensor.clone()


@opaque
def _has_compatible_shallow_copy_type(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    """What modules ask before they move a parameter by `.data = `."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return may_leave(tensor, new) or _aten._has_compatible_shallow_copy_type.default._op_dk(key, tensor, new)


@opaque
def _ctc_loss(log_probs: torch.Tensor, *args: Any) -> torch.Tensor:
    """ATen's composition, which with tensors of a subclass does not move the lengths from the CPU."""
    moved = [a.to(log_probs.device) if isinstance(a, torch.Tensor) else a for a in args]
    return _aten.ctc_loss.Tensor._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, log_probs, *moved)


def _after_fork() -> None:
    """In a forked process, from which JAX's threads are gone: a computation would wait for them forever."""
    if not xla_bridge.backends_are_initialized():
        return  # it can start JAX itself

    def refuse(*_args: Any) -> Any:
        raise RuntimeError(
            "Cannot use JAX in a forked subprocess: it was started before the fork. With multiprocessing,"
            " use the 'spawn' start method (DataLoader: multiprocessing_context='spawn'), or CPU tensors alone."
        )

    # nothing is asked in other processes: what all computations pass is replaced in this one
    x64.enter = refuse
    setattr(x64.Enabled, "__enter__", refuse)  # noqa: B010  # mypy allows no method to be assigned
    bridge._capsule_to_buffer = refuse
    device.in_bad_fork = True


os.register_at_fork(after_in_child=_after_fork)

if device.CLAIMED:
    for _spec in registry.SPECS.values():
        if _spec.namespace == "jaten" and _spec.takes_no_tensors and _spec.overload in registry.KERNELS:
            _ATEN.impl(_spec.overload, _factory(_spec.overload), "PrivateUse1")
    # carriers and factories come here; wrappers are caught above, by __torch_dispatch__
    _FALLBACK.fallback(_fallback, "PrivateUse1")
    for _key in _NO_ARRAYS:
        _FALLBACK.fallback(_no_array, _key)
    # `torch.tensor` copies, and reads numbers, with __torch_dispatch__ switched off, where the fallback is not reached
    _ATEN.impl("_copy_from", _copy_from, "PrivateUse1")
    _ATEN.impl("_local_scalar_dense", opaque(_local_scalar_dense), "PrivateUse1")
    _ATEN.impl("_pin_memory", _pin_memory, "CPU")
    _ATEN.impl("ctc_loss.Tensor", _ctc_loss, "AutogradPrivateUse1")
    _ATEN.impl("_convolution", scripting.convolve, "AutogradPrivateUse1")
    for _cell in recurrent.CELLS:
        _ATEN.impl(f"{_cell}.input", recurrent.implementation(_cell), "AutogradPrivateUse1")
    for _spec in VARIANTS.values():
        if _spec.packet in _NOT_ATENS and _spec.kind == "out":
            _ATEN.impl(_spec.overload, _written_out(_spec.overload), "AutogradPrivateUse1")
    _ATEN.impl("_has_compatible_shallow_copy_type", _has_compatible_shallow_copy_type, "AutogradPrivateUse1")
    setattr(torch.utils, "swap_tensors", exchange)  # noqa: B010  # for mypy a function is no attribute
    keep_out_of_constants("jax")
    storage.register()
    recording.register()
    scripting.register()
    uninitialized.register()
    higher_order.register()
