"""The option `buckets` of `torch.compile`, and the sizes to which sizes are rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaten_ops.errors import UnsupportedInputError
from jaten_ops.masking.size_choice import next_power_of_two

POWERS = "powers of two"
AUTO = "auto"
OFF = "off"
Sizes = Sequence[int] | str


class Buckets:
    """The option `buckets`: sizes for all dimensions of the inputs, or for some.

    Args:
        option: sizes, or "powers of two", or a dict of these by the number of the dimension in the inputs; "auto" or
            None for those of jaten's choice, for sizes that change at run time; "off" for none.

    Attributes:
        is_off: whether nothing is rounded.
        is_auto: whether jaten chooses.

    Raises:
        UnsupportedInputError: it is none of these.
    """

    def __init__(self, option: Any) -> None:
        self._by_dim: dict[int, Sizes] | None = None
        self._all: Sizes | None = None
        self.is_off, self.is_auto = option == OFF, option in (None, AUTO)
        if self.is_off or self.is_auto:
            return
        if isinstance(option, Mapping):
            self._by_dim = {int(d): _checked(sizes) for d, sizes in option.items()}
        else:
            self._all = _checked(option)

    def of_dim(self, dim: int | None) -> Sizes | None:
        if self._by_dim is None or dim is None:
            return self._all
        return self._by_dim.get(dim)


def _checked(sizes: Any) -> Sizes:
    if sizes == POWERS:
        return POWERS
    if isinstance(sizes, Sequence) and sizes and all(isinstance(s, int) and s > 0 for s in sizes):
        return sorted(sizes)
    raise UnsupportedInputError(
        "the option buckets", repr(sizes), f"sizes, as [8, 16, 32], {POWERS!r}, {AUTO!r} or {OFF!r}"
    )


def rounded(size: int, sizes: Sizes) -> int:
    """The size of the bucket; a size above the largest bucket is its own."""
    if isinstance(sizes, str):
        return next_power_of_two(size)
    return next((s for s in sizes if s >= size), size)
