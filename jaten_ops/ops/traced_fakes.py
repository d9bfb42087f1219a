"""Fakes of operators from their kernels, traced on shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from ..arrays import bridge
from ..schema import OpSpec
from .symbolic_sizes import EqualSizes, SymbolicSizes, Undecided, require_equal

_log = logging.getLogger(__name__)

# what a kernel raises that asks for the value of a symbolic size; shapes that only agree for some sizes are a TypeError
_UNDECIDED = (Undecided, jax.errors.ConcretizationTypeError, TypeError, ValueError, NotImplementedError)


class TracedFake:
    """The results of a kernel as meta tensors.

    Args:
        spec: the operator.
        positions: which of its arguments the kernel gets.
        freeze: gives an argument without tensors in the form for kernels.
        trace: gives the results of the kernel for arguments whose tensors are `jax.ShapeDtypeStruct`s.
    """

    def __init__(
        self,
        spec: OpSpec,
        positions: Sequence[int],
        freeze: Callable[[Any], Any],
        trace: Callable[[Sequence[Any]], Any],
    ) -> None:
        self._spec, self._positions, self._freeze, self._trace = spec, positions, freeze, trace

    def of(self, values: Sequence[Any]) -> Any:
        """The results for arguments in schema order.

        Symbolic sizes that the kernel needs to be equal, as in `x * y`, become equal, as they do in torch's own
        operators. If that is not enough, all get the values that they have now.
        """
        sizes = SymbolicSizes()
        try:
            return self._for(values, sizes, sizes.to_jax)
        except _UNDECIDED as error:
            if not _has_symbols(values):
                raise
            if (found := self._of_equal(values, sizes.of_equal_hints())) is not None:
                return found
            _log.info(
                "%s: its kernel's results are traced for each size apart, since it does not take symbolic ones (%s)."
                " Fix: register a fake with jaten_ops.fake(%r)",
                *(self._spec.name, str(error).partition("\n")[0], self._spec.name),
            )
        return self._for(values, SymbolicSizes(), int)

    def _of_equal(self, values: Sequence[Any], pairs: Sequence[EqualSizes]) -> Any:
        """The results if as few as possible of these pairs of sizes are equal; None if all of them are not enough."""

        def traced(equal: Sequence[EqualSizes]) -> Any:
            try:
                return self._for(values, sizes := SymbolicSizes(equal), sizes.to_jax)
            except _UNDECIDED:
                return None

        if not pairs or (found := traced(pairs)) is None:
            return None
        needed = list(pairs)
        for pair in pairs:
            fewer = [p for p in needed if p is not pair]
            if fewer and (other := traced(fewer)) is not None:
                needed, found = fewer, other
        require_equal(needed)
        return found

    def _for(self, values: Sequence[Any], sizes: SymbolicSizes, taken_as: Callable[[Any], Any]) -> Any:
        def abstract(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return jax.ShapeDtypeStruct(tuple(map(taken_as, value.shape)), bridge.to_numpy_dtype(value.dtype))
            if isinstance(value, list | tuple):
                return tuple(abstract(v) for v in value)
            return taken_as(value) if isinstance(value, torch.SymInt) else self._freeze(value)

        taken = [abstract(values[i]) for i in self._positions]
        if self._spec.random:
            taken.append(jax.ShapeDtypeStruct((), np.dtype("int64")))
        device = self._device_of(values)

        def meta(a: Any) -> torch.Tensor:
            shape = tuple(map(sizes.to_torch, a.shape))
            return torch.empty(shape, dtype=bridge.TORCH_DTYPES[np.dtype(a.dtype)], device=device)

        return jax.tree.map(meta, self._trace(taken))

    def _device_of(self, values: Sequence[Any]) -> torch.device:
        """The device of the results: the one that the call names, else that of its tensors."""
        for argument, value in zip(self._spec.arguments, values, strict=True):
            if argument.name == "device" and argument.is_of_storage and value is not None:
                return torch.device(value)
        tensors = (v for v in jax.tree.leaves(values) if isinstance(v, torch.Tensor))
        return next((t.device for t in tensors), torch.device("cpu"))


def _has_symbols(values: Sequence[Any]) -> bool:
    leaves = jax.tree.leaves(list(values))
    sizes = [n for v in leaves if isinstance(v, torch.Tensor) for n in v.shape]
    return any(isinstance(n, torch.SymInt) for n in (*leaves, *sizes))
