"""`jaten_ops.Tensor`: a torch tensor on the device `jax` whose data is a `jax.Array`.

A wrapper subclass of one carrier. Each ATen call on it becomes the jaten op of the same overload on the carriers; under
Dynamo and AOTAutograd the carriers are fake, and the jaten ops are what is recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._pytree import tree_leaves

from . import bridge, carrier, device, library, registry, variants
from .errors import MissingKernelError
from .meta import aten_overload
from .schema import COMPOSITE, VARIANTS
from .tracing import opaque


class Tensor(torch.Tensor):
    """A tensor on the device `jax`. Make one with `tensor.to("jax")` or a factory's `device="jax"`."""

    _carrier: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Tensor:
        device.require()
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        self._carrier = inner
        return self

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_carrier"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], meta: None, size: Any, stride: Any) -> Tensor:
        return Tensor(inner["_carrier"])

    def __repr__(self) -> str:  # type: ignore[override]  # torch.Tensor's takes tensor_contents, which only torch uses
        if is_traced(self._carrier):
            return f"jaten_ops.Tensor({self._carrier})"
        text = repr(self.detach().cpu())
        grad = f", grad_fn=<{type(self.grad_fn).__name__}>" if self.grad_fn is not None else ""
        grad = grad or (", requires_grad=True" if self.requires_grad else "")
        return f"{text[:-1]}, device='{self.device}'{grad})"

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.cpu().tolist()

    @classmethod
    @opaque
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's own annotation is of its disabled default
        return forward(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch documents


def _is_on_jax(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "jax"


def _to_carrier(tensor: torch.Tensor, func: Any) -> torch.Tensor:
    """The carrier of an operand: a wrapper's own, a carrier as it is, a 0-d CPU tensor as a new one."""
    if isinstance(tensor, Tensor):
        return tensor._carrier
    if _is_on_jax(tensor):
        return tensor
    if tensor.dim() == 0 and tensor.device.type == "cpu":
        return tensor if is_traced(tensor) else carrier.wrap(bridge.borrow(tensor.clone()))
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, jax:0 and {tensor.device}!"
        f" (when calling {func}; move it with .to('jax'))"
    )


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one while Dynamo or AOTAutograd traces, and holds no values."""
    return isinstance(tensor, FakeTensor | FunctionalTensor) or (_is_on_jax(tensor) and not carrier.is_real(tensor))


def _unwrap(value: Any, func: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _to_carrier(value, func)
    if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return [_unwrap(v, func) for v in value]
    return value


def _wrap(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Tensor(value) if _is_on_jax(value) else value
    if isinstance(value, list | tuple):
        return type(value)(_wrap(v) for v in value)
    return value


def forward(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs an ATen call whose operands or result are on the device `jax` as the jaten op of the same overload."""
    special = _SPECIAL.get(func)
    if special is not None:
        return special(func, args, kwargs)
    namespace, _, name = func.name().partition("::")
    overload = name if namespace in ("aten", "jaten") else f"{namespace}::{name}"
    if overload in VARIANTS:
        return _variant(overload)(*args, **kwargs)
    if overload in registry.KERNELS:
        return _functional(overload)(*args, **kwargs)
    result = func.decompose(*args, **kwargs)
    if result is NotImplemented:
        raise MissingKernelError(f"jaten::{overload}")
    return result


@functools.cache
def _variant(overload: str) -> Callable[..., Any]:
    """An in-place or out= overload on tensors of the device."""
    spec = VARIANTS[overload]
    if spec.base in COMPOSITE:
        return variants.make_variant(spec, COMPOSITE[spec.base], _aten(spec.base), _store)
    return variants.make_variant(spec, registry.SPECS[spec.base], _functional(spec.base), _store)


@functools.cache
def _functional(overload: str) -> Callable[..., Any]:
    """A functional overload on tensors of the device: its kernel on their carriers, or a node of the traced graph."""
    spec = registry.SPECS[overload]
    op, kernel = library.op_of(spec), library.JAX_KERNELS[overload]
    tensor_slots = [i for i, a in enumerate(spec.arguments) if a.type == "Tensor" and not a.kwarg_only]

    def call(*args: Any, **kwargs: Any) -> Any:
        inner = [_unwrap(a, op) for a in args]
        keywords = {k: _unwrap(v, op) for k, v in kwargs.items()} if kwargs else kwargs
        tensors = [t for t in tree_leaves((inner, keywords)) if isinstance(t, torch.Tensor)]
        if not any(map(is_traced, tensors)):
            return _wrap(kernel(*inner, **keywords))
        if any(not isinstance(inner[i], torch.Tensor) for i in tensor_slots if i < len(inner)):
            # ATen's op takes a number for a tensor; the graph is renamed to jaten's ops when it is complete
            return _wrap(_aten(overload)(*inner, **keywords))
        return _wrap(op(*inner, **keywords))

    return call


def _aten(overload: str) -> Callable[..., Any]:
    op = aten_overload(overload)
    assert op is not None
    return op


def _store(target: torch.Tensor, result: torch.Tensor) -> None:
    """Gives a tensor new values: the payload of its carrier is replaced, so that aliases of the carrier see it."""
    inner = _to_carrier(target, "store")
    if is_traced(inner):  # AOTAutograd turns the write into a new value of the graph
        inner.copy_(_to_carrier(result, "store"))
        return
    array = carrier.unwrap(_to_carrier(result, "store"))
    dtype = bridge.DTYPES[target.dtype]
    if array.dtype != dtype:
        array = carrier.unwrap(torch.ops.jaten._to_copy(carrier.wrap(array), dtype=target.dtype))
    carrier.replace(inner, array)


def _array_of(tensor: torch.Tensor) -> jax.Array:
    """The array of any tensor; a copy of a tensor in torch's memory, which torch may overwrite."""
    if _is_on_jax(tensor):
        return carrier.unwrap(_to_carrier(tensor, "read"))
    return bridge.borrow(tensor.clone(memory_format=torch.contiguous_format))


def _alias(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """detach and alias: another tensor of the same carrier."""
    inner = _to_carrier(args[0], func)
    return Tensor(torch.ops.jaten.alias(inner)) if is_traced(inner) else Tensor(inner)


def _copy_(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if not _is_on_jax(target):  # out of the device: torch's memory is written
        values = bridge.export(_array_of(source))
        return target.copy_(values)
    inner = _to_carrier(target, func)
    if is_traced(inner):
        inner.copy_(_to_carrier(source, func) if _is_on_jax(source) else source)
        return target
    on_jax = source if _is_on_jax(source) else carrier.wrap(_array_of(source))
    _store(target, torch.ops.jaten.copy(inner, _to_carrier(on_jax, func)))
    return target


def _to_copy(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    wanted = kwargs.get("device")
    if wanted is None or torch.device(wanted).type == "jax":
        return _functional("_to_copy")(*args, **(kwargs | {"device": None}))
    inner = _to_carrier(args[0], func)
    kept = {k: v for k, v in kwargs.items() if k not in ("non_blocking", "layout", "pin_memory")}
    if is_traced(inner):
        return func(inner, **kept)
    # a copy: what torch may write to is never a jax.Array's own memory
    return func(bridge.export(carrier.unwrap(inner)), **(kept | {"device": wanted})).clone()


def _local_scalar_dense(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    inner = _to_carrier(args[0], func)
    return func(inner) if is_traced(inner) else carrier.unwrap(inner).item()


def _native_batch_norm(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """ATen's op writes to the running statistics, though its schema does not say so."""
    values = library.Signature(registry.SPECS["native_batch_norm"]).bind(args, kwargs)
    input, weight, bias, running_mean, running_var, training, momentum, eps = values
    if not training or running_mean is None:
        return _functional("native_batch_norm")(*values)
    functional = _functional("_native_batch_norm_legit_functional")
    *results, mean, var = functional(input, weight, bias, running_mean, running_var, training, momentum, eps)
    _store(running_mean, mean)
    _store(running_var, var)
    return tuple(results)


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.detach.default: _alias,
    torch.ops.aten.alias.default: _alias,
    torch.ops.aten.lift_fresh.default: _alias,
    torch.ops.aten.copy_.default: _copy_,
    torch.ops.aten._to_copy.default: _to_copy,
    torch.ops.aten.native_batch_norm.default: _native_batch_norm,
    torch.ops.aten._local_scalar_dense.default: _local_scalar_dense,
}

_ATEN = torch.library.Library("aten", "IMPL")
_FALLBACK = torch.library.Library("_", "IMPL")


@opaque
def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    return forward(func, args, kwargs)


def _factory(overload: str) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return _functional(overload)(*args, **kwargs)

    return opaque(make)


@opaque
def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return _copy_(None, (target, source), {})


if device.CLAIMED:
    for _spec in registry.SPECS.values():
        if _spec.namespace == "jaten" and _spec.takes_no_tensors and _spec.overload in registry.KERNELS:
            _ATEN.impl(_spec.overload, _factory(_spec.overload), "PrivateUse1")
    # carriers and factories come here; wrappers are caught above, by __torch_dispatch__
    _FALLBACK.fallback(_fallback, "PrivateUse1")
    # `torch.tensor(..., device="jax")` copies with __torch_dispatch__ switched off, where the fallback is not reached
    _ATEN.impl("_copy_from", _copy_from, "PrivateUse1")
