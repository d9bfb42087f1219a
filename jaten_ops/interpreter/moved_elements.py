"""Rules of primitives that move elements: shapes, slices, parts put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .primitive_rules import NumpyStep, computed_by, dtype_of, interpreted_if


@computed_by("reshape")
def _reshaped(equation: Any) -> NumpyStep:
    shape = equation.params["new_sizes"]
    interpreted_if(equation.params.get("dimensions") is None and equation.params.get("sharding") is None)
    return lambda x: np.reshape(x, shape)


@computed_by("broadcast_in_dim")
def _expanded(equation: Any) -> NumpyStep:
    shape, dims = equation.params["shape"], equation.params["broadcast_dimensions"]
    interpreted_if(equation.params.get("sharding") is None and len(equation.invars) == 1)
    given = equation.invars[0].aval.shape
    middle = [1] * len(shape)
    for size, dim in zip(given, dims, strict=True):
        middle[dim] = size
    return lambda x: np.broadcast_to(np.reshape(x, middle), shape)


@computed_by("squeeze", "rev")
def _squeezed_or_flipped(equation: Any) -> NumpyStep:
    dims, change = tuple(equation.params["dimensions"]), np.squeeze if equation.primitive.name == "squeeze" else np.flip
    return lambda x: change(x, dims)


@computed_by("transpose")
def _transposed(equation: Any) -> NumpyStep:
    order = equation.params["permutation"]
    return lambda x: np.transpose(x, order)


@computed_by("slice")
def _sliced(equation: Any) -> NumpyStep:
    begin, end = equation.params["start_indices"], equation.params["limit_indices"]
    steps = equation.params["strides"] or (1,) * len(begin)
    taken = tuple(map(slice, begin, end, steps))
    return lambda x: x[taken]


def _part(shape: Sequence[int], sizes: Sequence[int], begins: Sequence[Any]) -> tuple[slice, ...]:
    """A part of these sizes that begins where it is told, or as near as it fits."""
    at = [min(max(int(b), 0), n - k) for b, n, k in zip(begins, shape, sizes, strict=True)]
    return tuple([slice(b, b + k) for b, k in zip(at, sizes, strict=True)])


@computed_by("dynamic_slice")
def _sliced_at(equation: Any) -> NumpyStep:
    sizes, shape = equation.params["slice_sizes"], equation.invars[0].aval.shape
    interpreted_if(len(equation.invars) == 1 + len(sizes))
    return lambda x, *begins: x[_part(shape, sizes, begins)]


@computed_by("dynamic_update_slice")
def _replaced_at(equation: Any) -> NumpyStep:
    shape, sizes = equation.invars[0].aval.shape, equation.invars[1].aval.shape

    def put(x: Any, part: Any, *begins: Any) -> Any:
        result = np.array(x)
        result[_part(shape, sizes, begins)] = part
        return result

    return put


@computed_by("concatenate")
def _joined(equation: Any) -> NumpyStep:
    dim = equation.params["dimension"]
    return lambda *parts: np.concatenate(parts, dim)


@computed_by("stack")
def _stacked(equation: Any) -> NumpyStep:
    dim = equation.params["axis"]
    return lambda *parts: np.stack(parts, dim)


@computed_by("split")
def _split(equation: Any) -> NumpyStep:
    ends, dim = np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"]
    return lambda x: tuple(np.split(x, ends, dim))


@computed_by("pad")
def _padded(equation: Any) -> NumpyStep:
    config, shape = equation.params["padding_config"], equation.outvars[0].aval.shape
    cut: tuple[slice, ...] = ()
    placed: tuple[slice, ...] = ()
    for (low, high, between), size in zip(config, equation.invars[0].aval.shape, strict=True):
        interpreted_if(between == 0 or (low >= 0 and high >= 0))
        inner = max(size - max(-low, 0) - max(-high, 0), 0)
        cut += (slice(max(-low, 0), max(-low, 0) + inner),)
        span = inner + between * max(inner - 1, 0)
        placed += (slice(max(low, 0), max(low, 0) + span, between + 1),)

    def pad(x: Any, value: Any) -> Any:
        result = np.full(shape, value, dtype)
        result[placed] = x[cut]
        return result

    dtype = dtype_of(equation)
    return pad


@computed_by("iota")
def _counted(equation: Any) -> NumpyStep:
    dtype, shape, dim = (equation.params[name] for name in ("dtype", "shape", "dimension"))
    interpreted_if(equation.params.get("sharding") is None and not equation.invars)
    middle = [1] * len(shape)
    middle[dim] = shape[dim]
    count = np.arange(shape[dim]).astype(dtype).reshape(middle)
    return lambda: np.broadcast_to(count, shape)


@computed_by("unstack")
def _unstacked(equation: Any) -> NumpyStep:
    dim = equation.params["axis"]
    return lambda x: tuple(np.moveaxis(x, dim, 0))


@computed_by("tile")
def _repeated(equation: Any) -> NumpyStep:
    counts = equation.params["reps"]
    return lambda x: np.tile(x, counts)
