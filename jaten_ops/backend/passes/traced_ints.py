"""Ints of a graph that change no shape, such as the position in a cache, as operands of the executable.

Dynamo makes an int that changes from call to call a symbol. One that is the size of something is compiled in; one that
is only a number in a sum, or where a slice of fixed length starts, is handed over with the arrays, and compiles once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch
from jax import lax
from torch.fx.experimental.symbolic_shapes import free_symbols

from jaten_ops import registry
from jaten_ops.kernel_base.promotion import weakly_typed
from jaten_ops.ops.executor import Signature

from ..graph_info import GraphInfo
from ..nodes import overload_of

SPEC = jax.ShapeDtypeStruct((2,), np.dtype("int32"))
"""The form in which a number is passed: as halves, since JAX narrows 64-bit NumPy operands if such types are off."""

_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.neg})


def to_operand(number: int) -> np.ndarray:
    """A number as an operand of the executable."""
    return np.array([number]).view(np.int32)


def from_operand(halves: jax.Array) -> jax.Array:
    """The passed number in the form for kernels: a weakly typed 0-d int64 array."""
    number = lax.bitcast_convert_type(halves, np.dtype("int64"))
    return weakly_typed(number, np.dtype("int64"))


def traced_ints(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Finds the inputs that are handed over: ints on which no shape depends, and that every operator takes so."""
    graph = gm.graph
    inputs = [n for n in graph.nodes if n.op == "placeholder" and isinstance(n.meta.get("val"), torch.SymInt)]
    if not inputs:
        return info
    tensors = [v for n in graph.nodes for v in _leaves(n.meta.get("val")) if isinstance(v, torch.Tensor)]
    sizes = {symbol for t in tensors for symbol in free_symbols([*t.shape, *t.stride()])}
    return info.having(
        numbers=frozenset(n for n in inputs if not free_symbols(n.meta["val"]) & sizes and _is_only_a_number(n))
    )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_only_a_number(node: torch.fx.Node) -> bool:
    """True if an array may replace this int of the graph, and everything computed from it."""
    return all(_is_only_a_number(u) if u.target in _ARITHMETIC else _takes_number(u, node) for u in node.users)


def _takes_number(user: torch.fx.Node, number: torch.fx.Node) -> bool:
    """True if an operator accepts a traced int at each argument where it has this one."""
    key = overload_of(user.target)
    if key not in registry.KERNELS:
        return False
    spec, static = registry.SPECS[key], registry.KERNELS[key].static
    values = Signature(spec).bind(user.args, user.kwargs)
    for argument, value in zip(spec.arguments, values, strict=True):
        if value is number:
            # a number may be in place of a tensor of the schema
            is_scalar = argument.type in ("Scalar", "Scalar?", "Tensor") and argument.name not in static
            is_bound = argument.name in _BOUNDS.get(str(key), ())
            if (
                not is_scalar
                and not is_bound
                and not (key in _STARTING and _has_fixed_length(user, dict(_named(spec, values))))
            ):
                return False
        elif isinstance(value, tuple | list) and number in value:
            return False
    return True


_BOUNDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("randint", "randint.generator"), ("high",)),
    **dict.fromkeys(("randint.low", "randint.low_generator"), ("low", "high")),
}
"""Bounds of random integers that Dynamo leaves open, which these kernels take as arrays, too."""


def _named(spec: Any, values: list[Any]) -> Iterator[tuple[str, Any]]:
    return zip([a.name for a in spec.arguments], values, strict=True)


def _has_fixed_length(node: torch.fx.Node, named: dict[str, Any]) -> bool:
    """True if the int only determines the start of a slice."""
    value = node.meta["val"]
    if named.get("step", 1) != 1 or not isinstance(named.get("dim", 0), int):
        return False
    if "dim" not in named:  # a range of numbers
        return isinstance(value.shape[0], int) and not value.dtype.is_floating_point
    source = named.get("src", named.get("grad_output"))
    shape = source.meta["val"].shape if isinstance(source, torch.fx.Node) else value.shape
    return "index" in named or isinstance(shape[named["dim"]], int)


def _start(start: Any, size: int, length: int) -> jax.Array:
    """The start of a slice whose length is within bounds."""
    start = lax.convert_element_type(0 if start is None else start, np.int64)
    start = lax.select(start < 0, start + size, start)
    return lax.clamp(np.int64(0), start, np.int64(size - length))


def _slice(x: jax.Array, dim: int, start: Any, length: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, _start(start, x.shape[dim], length), length, dim)


def _write(x: jax.Array, src: jax.Array, dim: int, start: Any) -> jax.Array:
    src = lax.convert_element_type(src, x.dtype)
    return lax.dynamic_update_slice_in_dim(x, src, _start(start, x.shape[dim], src.shape[dim]), dim)


def _slice_tensor(value: Any, self: jax.Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return _slice(self, dim % self.ndim, start, value.shape[dim])


def _select(value: Any, self: jax.Array, dim: int, index: Any) -> Any:
    return lax.squeeze(_slice(self, dim % self.ndim, index, 1), (dim % self.ndim,))


def _slice_scatter(
    value: Any, self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    return _write(self, src, dim % self.ndim, start)


def _select_scatter(value: Any, self: jax.Array, src: jax.Array, dim: int, index: Any) -> Any:
    return _write(self, lax.expand_dims(src, (dim % self.ndim,)), dim % self.ndim, index)


def _slice_backward(value: Any, grad: jax.Array, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Any:
    return _write(lax.full(sizes, 0, grad.dtype), grad, dim % len(sizes), start)


def _select_backward(value: Any, grad: jax.Array, sizes: Any, dim: int, index: Any) -> Any:
    dim = dim % len(sizes)
    return _write(lax.full(sizes, 0, grad.dtype), lax.expand_dims(grad, (dim,)), dim, index)


def _arange(value: Any, start: Any, end: Any, step: Any = 1, *, dtype: Any = None) -> Any:
    dtype = dtype or np.dtype("int64")
    return lax.convert_element_type(start, dtype) + lax.iota(dtype, value.shape[0])


_STARTING: dict[str, Callable[..., Any]] = {
    "slice.Tensor": _slice_tensor,
    "slice_copy.Tensor": _slice_tensor,
    "select.int": _select,
    "select_copy.int": _select,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "slice_backward": _slice_backward,
    "select_backward": _select_backward,
    "arange.start": _arange,
    "arange.start_step": _arange,
}
"""Slices of fixed length with an array as their start; the first argument is the fake of the result."""


def with_traced_start(node: torch.fx.Node, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of a node; for a slice one that accepts an array as its start."""
    starting = _STARTING.get(overload_of(node.target) or "")
    if starting is None:
        return kernel

    def either(*args: Any, **kwargs: Any) -> Any:
        handed_over = any(isinstance(a, jax.core.Tracer) and a.weak_type for a in args)
        return starting(node.meta["val"], *args, **kwargs) if handed_over else kernel(*args, **kwargs)

    return either
