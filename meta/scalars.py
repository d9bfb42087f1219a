"""Meta functions of ATen's operators on lists that take a tensor with a number for each element.

ATen has none: its implementation reads the numbers, and tensors without values have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .reuse import aten_overload

OVERLOADS = tuple(f"_foreach_{name}{end}.Tensor" for name in ("addcdiv", "addcmul") for end in ("", "_"))


def numbers(scalars: torch.Tensor) -> list[Any]:
    """Placeholder numbers, of the type and count of a tensor of scalars.

    Raises:
        RuntimeError: it is not 1-d.
    """
    if scalars.dim() != 1:
        raise RuntimeError(
            f"Expected packed scalar Tensor to be of dimension 1. Got {scalars.dim()} instead."
        )  # as ATen words it
    dtype = scalars.dtype
    one = 1j if dtype.is_complex else 1.0 if dtype.is_floating_point else dtype == torch.bool or 1
    return [one] * int(scalars.shape[0])


def meta_of(overload: str) -> Callable[..., Any]:
    """The meta function of one of these operators: it calls the operator that takes a list of numbers."""
    op = aten_overload(overload.replace(".Tensor", ".ScalarList"))
    assert op is not None

    def meta(self: Any, tensor1: Any, tensor2: Any, scalars: torch.Tensor) -> Any:
        return op(self, tensor1, tensor2, numbers(scalars))

    return meta
