"""Checks of a kernel's results against the schema of its operator and against its fake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from .. import registry
from ..arrays import bridge
from ..errors import KernelResultError
from ..kernel_base import promotion
from ..schema import OpSpec


def settled(spec: OpSpec, results: Any, source: str = "") -> Any:
    """A kernel's results without weak types.

    Raises:
        KernelResultError: the schema says otherwise: it asks for one array, a list of arrays, or a tuple with one entry
            for each result.
    """
    kinds = spec.returns
    if not kinds:
        return None
    is_many = isinstance(results, tuple | list)
    if len(kinds) == 1:
        fits = is_many if kinds[0].endswith("[]") else not is_many
        if results is None and kinds[0] != "Tensor?":  # one of several may be absent, as ATen's are by an output mask
            _refuse(spec, results, source)
        return _settled(results) if fits and _is_of_arrays([results]) else _refuse(spec, results, source)
    if not is_many or len(results) != len(kinds):
        _refuse(spec, results, source)
    for kind, result in zip(kinds, results, strict=True):
        if isinstance(result, tuple | list) != kind.endswith("[]") or not _is_of_arrays([result]):
            _refuse(spec, results, source)
    return tuple(map(_settled, results))


def _is_of_arrays(results: Sequence[Any]) -> bool:
    """True if these are arrays, lists of arrays, or absent."""
    return all(
        r is None or isinstance(r, jax.Array | np.ndarray | np.generic) or (isinstance(r, tuple | list) and _is_flat(r))
        for r in results
    )


def _is_flat(results: Sequence[Any]) -> bool:
    return not any(r is None or isinstance(r, tuple | list) for r in results) and _is_of_arrays(results)


def _settled(result: Any) -> Any:
    return jax.tree.map(lambda a: promotion.cast(a, a.dtype), result)


def _refuse(spec: OpSpec, results: Any, source: str) -> None:
    says = f"({', '.join(spec.returns)})" if len(spec.returns) > 1 else spec.returns[0]
    raise KernelResultError(registry.name_of_user(spec.name), in_words(results), says, source, by="schema")


def in_words(result: Any) -> str:
    if isinstance(result, tuple | list):
        brackets = "()" if isinstance(result, tuple) else "[]"
        return f"{brackets[0]}{', '.join(map(in_words, result))}{brackets[1]}"
    return "an array" if isinstance(result, jax.Array | np.ndarray | np.generic) else type(result).__name__


def hold_against(
    spec: OpSpec, results: Any, said: Any, source: str = "", size_of: Callable[[Any], int | None] = int
) -> None:
    """Raises KernelResultError if the number, shapes or dtypes of the results differ from the fake's.

    Args:
        spec: the operator.
        results: the kernel's, from `settled`.
        said: the fake's results.
        source: the line of the user's program.
        size_of: gives the value of a symbolic size; None if it is not known.
    """
    kinds = spec.returns
    got, want = (_tensors(kinds, value) for value in (results, said))
    if len(got) != len(want) or not all(map(_fits, got, want, [size_of] * len(got))):
        name = registry.name_of_user(spec.name)
        raise KernelResultError(name, [_kind(a) for a in got], [_kind(t, size_of) for t in want], source)


def _tensors(kinds: Sequence[str], value: Any) -> list[Any]:
    """The tensors among results, an absent one as None; numbers such as lengths are arrays here, plain in the fake."""
    each = value if len(kinds) > 1 and isinstance(value, tuple | list) else (value,)
    found: list[Any] = []
    for kind, result in zip(kinds, each, strict=False):
        if kind == "Tensor[]" and isinstance(result, tuple | list):
            found += result
        elif kind.startswith("Tensor"):
            found.append(result)
    return found


def _dtype(value: Any) -> np.dtype:
    return bridge.to_numpy_dtype(value.dtype) if isinstance(value, torch.Tensor) else np.dtype(value.dtype)


def _fits(array: Any, fake: Any, size_of: Callable[[Any], int | None]) -> bool:
    if array is None or not isinstance(fake, torch.Tensor):
        return array is fake
    shape = array.shape
    return (
        len(shape) == fake.dim()
        and _dtype(array) == _dtype(fake)
        and all(size_of(want) in (None, size) for size, want in zip(shape, fake.shape, strict=True))
    )


def _kind(value: Any, size_of: Callable[[Any], int | None] = int) -> Any:
    if not hasattr(value, "shape"):
        return value
    known = [size_of(size) for size in value.shape]
    return tuple([size if n is None else n for size, n in zip(value.shape, known, strict=True)]), _dtype(value)
