"""ATen's view ops on the device `jax`: the result's place in the operand's storage, by ATen's own meta functions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..errors import UnsupportedInputError
from ..interpreter import interpreted
from ..tracing import out_of_sight
from . import bridge
from .storage_views import AnyStorage, Lens, View
from .strides import is_row_major

Geometry = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]


def strides_in_format(memory_format: torch.memory_format, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of some sizes in a memory format."""
    with out_of_sight():
        return torch.empty(shape, device="meta", memory_format=memory_format).stride()


@functools.lru_cache(maxsize=4096)
def strides_kept(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor like one with these strides, in the same order of dimensions, without gaps."""
    if is_row_major(shape, strides):  # for these torch's meta function has others than its kernel
        return strides
    with out_of_sight():
        return torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()


def strides_resized(view: View, size: Sequence[int], like: torch.Tensor | None, memory_format: Any) -> tuple[int, ...]:
    """The strides after `resize_` or `resize_as_`; RuntimeError for formats that ATen refuses."""
    with out_of_sight():
        target = torch.empty_strided(view.shape, view.strides(), device="meta")
        if like is None:
            return target.resize_(size, memory_format=memory_format).stride()
        other = torch.empty_strided(like.shape, like.stride(), device="meta")
        return target.resize_as_(other, memory_format=memory_format).stride()


def is_view(func: torch._ops.OpOverload) -> bool:
    """True if every call of an ATen operator returns tensors in its operand's memory."""
    aliases = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    aliases = aliases or func is torch.ops.aten._unsafe_view.default  # its schema does not say so
    # a composite, such as reshape, may do so or not
    return aliases and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def viewer(func: torch._ops.OpOverload) -> Callable[[View, torch.dtype, Any, Any], Any]:
    """The function that gives a view op's result, or a list of them: each a pair of a view and its dtype.

    Args:
        func: the ATen operator.

    It takes the view and the dtype of the operator's first operand, and the other arguments; none is a tensor.
    """
    lens = _LENSES.get(func)
    geometry = functools.lru_cache(4096)(functools.partial(_geometry, func))

    def made(storage: AnyStorage, dtype: torch.dtype, found: Geometry) -> tuple[View, torch.dtype]:
        shape, stride, offset, to = found
        return View(storage if lens is None else lens(storage, dtype, to), shape, stride, offset), to

    def views(view: View, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
        storage, stride = view.storage, view.stride
        given = tuple([tuple(a) if type(a) is list else a for a in args])
        found = geometry(
            storage.array.shape, dtype, view.shape, view.strides() if stride is None else stride, view.offset, given,
            tuple(kwargs.items()) if kwargs else (),
        )  # fmt: skip
        return [made(storage, dtype, g) for g in found] if isinstance(found, list) else made(storage, dtype, found)

    return views


def require_view(func: torch._ops.OpOverload, tensor: torch.Tensor, args: Any, kwargs: Any) -> None:
    """Raises ATen's RuntimeError if a tensor's strides allow no such view."""
    with out_of_sight():
        func(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"), *args, **kwargs)


def _geometry(
    func: torch._ops.OpOverload,
    own: tuple[int, ...],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
) -> Geometry | list[Geometry]:
    elements = math.prod(own)
    # without modes: these tensors are not the user's
    with out_of_sight():
        operand = torch.empty(elements, dtype=dtype, device="meta").as_strided(shape, stride, offset)
        results = func(operand, *args, **dict(kwargs))
    if isinstance(results, list | tuple):
        return [_geometry_of(r) for r in results]
    _check_bounds(results, elements * dtype.itemsize)
    return _geometry_of(results)


def _check_bounds(t: torch.Tensor, size: int) -> None:
    """Raises ATen's RuntimeError if a tensor's elements lie beyond a storage of so many bytes."""
    if not t.numel():
        return
    last = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    if (needed := (last + 1) * t.itemsize) > size:
        raise RuntimeError(
            f"setStorage: sizes {list(t.shape)}, strides {list(t.stride())}, storage offset {t.storage_offset()}, and"
            f" itemsize {t.itemsize} requiring a storage size of {needed} are out of bounds for storage of size {size}"
        )


def _geometry_of(t: torch.Tensor) -> Geometry:
    return tuple(t.shape), t.stride(), int(t.storage_offset()), t.dtype


# The view ops that change elements; each function is compiled once and serves all tensors.

_conj, _negative = interpreted(jnp.conj), interpreted(operator.neg)


@interpreted
def _to_real(array: jax.Array) -> jax.Array:
    return jnp.stack([array.real, array.imag], -1).reshape(-1)


def _in_groups(array: jax.Array, size: int) -> jax.Array:
    """The elements in rows. An incomplete last row of the storage is padded; `Lens.put` drops the padding."""
    flat = array.reshape(-1)
    return jnp.pad(flat, (0, -flat.size % size)).reshape(-1, size)


@interpreted
def _to_complex(array: jax.Array) -> jax.Array:
    if array.dtype == jnp.float16:
        raise UnsupportedInputError("view_as_complex", "torch.float16", "float32 or float64: JAX has no complex32")
    pairs = _in_groups(array, 2)
    return jax.lax.complex(pairs[:, 0], pairs[:, 1])


@functools.partial(interpreted, static_argnums=(1,))
def _cast_bits(array: jax.Array, to: Any) -> jax.Array:
    flat = array.reshape(-1)
    if flat.dtype == bool:
        flat = flat.astype(jnp.uint8)
    if jnp.issubdtype(flat.dtype, jnp.complexfloating):
        flat = _to_real(flat)
    if to.kind == "b":
        return _cast_bits(flat, jnp.dtype(jnp.uint8)).astype(bool)
    if jnp.issubdtype(to, jnp.complexfloating):
        return _to_complex(_cast_bits(flat, jnp.dtype(jnp.float32 if to.itemsize == 8 else jnp.float64)))
    many = to.itemsize // flat.dtype.itemsize
    return jax.lax.bitcast_convert_type(_in_groups(flat, many) if many > 1 else flat, to).reshape(-1)


def with_bits_cast(storage: AnyStorage, dtype: torch.dtype, to: torch.dtype) -> AnyStorage:
    """A storage of one dtype, reinterpreted as another."""
    if dtype == to:
        return storage
    there, back = bridge.to_numpy_dtype(to), bridge.to_numpy_dtype(dtype)
    return Lens(storage, lambda a: _cast_bits(a, there), lambda a: _cast_bits(a, back))


_LENSES: dict[torch._ops.OpOverload, Callable[[AnyStorage, torch.dtype, torch.dtype], AnyStorage]] = {
    torch.ops.aten.view_as_real.default: lambda storage, dtype, to: Lens(storage, _to_real, _to_complex),
    torch.ops.aten.view_as_complex.default: lambda storage, dtype, to: Lens(storage, _to_complex, _to_real),
    torch.ops.aten._conj.default: lambda storage, dtype, to: Lens(storage, _conj, _conj),
    torch.ops.aten._neg_view.default: lambda storage, dtype, to: Lens(storage, _negative, _negative),
    torch.ops.aten.view.dtype: with_bits_cast,
}


def reinterprets(op: torch._ops.OpOverload) -> bool:
    """True for a view op that changes elements, such as `_conj` and `view_as_real`."""
    return op in _LENSES
