"""What torch's dispatcher is told of the device `jax`, for calls that do not come by `Tensor.__torch_dispatch__`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from .. import meta, registry
from ..arrays import bridge, carrier
from ..arrays.watching import WATCHERS, met
from ..device import privateuse1, streams
from ..errors import UnsupportedInputError
from ..hooks import default_backend, make_fx, torchscript
from ..hooks.ledger import replace
from ..ops.composite import CHECKS
from ..ops.namespace import operator_of
from ..schema import VARIANTS
from ..tensor import lazy_parameters, storage
from ..tensor.tensor import CLASSES, HANDLERS, Tensor, array_of, exchange, has_values, make_handler, may_leave
from ..tracing import is_traced_now, keep_out_of_constants, opaque, relate_sizes_of
from ..xla import x64
from . import (
    device_ops,  # noqa: F401  # its handlers
    fused_attention,
    higher_order,
    recurrent_layers,
    traced_control_flow,
)
from .handlers import functional, is_on_jax, variant

_aten = torch.ops.aten
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


def _measured(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """What a nested tensor on any device is asked: autograd asks it of all that it makes, and may be told no error."""
    return opaque(lambda tensor: op._op_dk(torch._C.DispatchKey.NestedTensorCPU, tensor))


_MEASURES = ("_nested_tensor_size", "_nested_tensor_storage_offsets", "_nested_tensor_strides")

_NO_ARRAYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1", "NestedTensorPrivateUse1", "QuantizedPrivateUse1")


def _factory(overload: str) -> Callable[..., Any]:
    op = operator_of(overload, "aten")
    special = HANDLERS.get(op)

    def make(*args: Any, **kwargs: Any) -> Any:
        if WATCHERS:
            args, kwargs = met(op, args, kwargs)  # type: ignore[assignment]  # a sequence is as good as a tuple
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
    return cast(torch.Tensor, HANDLERS[_aten.copy_.default](target, source))


@opaque
def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy: JAX has no use for pinned memory. For CUDA, which torch asks if a program names it, ATen's own."""
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


def _checked(overload: str) -> Callable[..., Any]:
    """ATen's composition of an operator, after the check of its arguments' values, where they have any."""
    check, op = CHECKS[overload], operator_of(overload, "aten")

    def call(tensor: torch.Tensor, *args: Any) -> Any:
        if has_values(tensor):
            check(bridge.export(array_of(tensor)), *args)  # on the CPU: JAX may trace all that is computed
        return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, tensor, *args)

    return opaque(call)


def _replace(overload: str, fn: Callable[..., Any]) -> None:
    """Puts a function in the place of a composition of ATen's: above autograd, and where there is none, in inference.

    That is `torch.inference_mode()`, in which `Tensor.__torch_dispatch__` gets the composition whole.
    """
    _ATEN.impl(overload, fn, "AutogradPrivateUse1")
    HANDLERS[operator_of(overload, "aten")] = fn


def _after_fork() -> None:
    """In a forked process, from which JAX's threads are gone: a computation would wait for them forever."""
    if not streams.has_started():
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
    privateuse1.in_bad_fork = True


for _overload in meta.scalars.OVERLOADS:
    _ATEN.impl(_overload, opaque(meta.scalars.meta_of(_overload)), "Meta")

os.register_at_fork(after_in_child=_after_fork)

if privateuse1.CLAIMED:
    for _spec in registry.SPECS.values():
        if _spec.namespace == "jaten" and _spec.takes_no_tensors and _spec.overload in registry.KERNELS:
            _ATEN.impl(_spec.overload, _factory(_spec.overload), "PrivateUse1")
    # carriers and factories come here; wrappers are caught above, by __torch_dispatch__
    _FALLBACK.fallback(_fallback, "PrivateUse1")
    for _key in _NO_ARRAYS:
        _FALLBACK.fallback(_no_array, _key)
    for _measure in _MEASURES:
        _ATEN.impl(_measure, _measured(operator_of(_measure, "aten")), "NestedTensorPrivateUse1")
    # `torch.tensor` copies, takes a storage and reads numbers with __torch_dispatch__ switched off, where the fallback
    # is not reached
    _ATEN.impl("_copy_from", _copy_from, "PrivateUse1")
    _ATEN.impl("set_.source_Storage", opaque(HANDLERS[_aten.set_.source_Storage]), "PrivateUse1")
    _ATEN.impl("_local_scalar_dense", opaque(HANDLERS[_aten._local_scalar_dense.default]), "PrivateUse1")
    _ATEN.impl("_pin_memory", _pin_memory, "CPU")
    _replace("ctc_loss.Tensor", _ctc_loss)
    _replace("scaled_dot_product_attention", fused_attention.scaled_dot_product_attention)
    _ATEN.impl("_convolution", torchscript.convolve, "AutogradPrivateUse1")
    for _overload in CHECKS:
        _replace(_overload, _checked(_overload))
    for _cell in recurrent_layers.CELLS:
        _replace(f"{_cell}.input", recurrent_layers.implementation(_cell))
    for _spec in VARIANTS.values():
        if _spec.packet in _NOT_ATENS and _spec.kind == "out":
            _ATEN.impl(_spec.overload, _written_out(_spec.overload), "AutogradPrivateUse1")
    _ATEN.impl("_has_compatible_shallow_copy_type", _has_compatible_shallow_copy_type, "AutogradPrivateUse1")
    replace("torch.utils:swap_tensors", lambda _: exchange)
    keep_out_of_constants("jax")
    relate_sizes_of("_carrier")
    privateuse1.JaxModule.Tensor = Tensor  # where the class says that it is
    CLASSES.keep_parameters()
    storage.register()
    make_fx.register()
    torchscript.register()
    lazy_parameters.register()
    higher_order.register()
    traced_control_flow.register()
    default_backend.register()
