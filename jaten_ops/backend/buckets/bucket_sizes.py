"""The option `buckets` of `torch.compile`, and the sizes to which sizes are rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaten_ops.errors import UnsupportedInputError

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
        return 1 << (size - 1).bit_length() if size else 0
    return next((s for s in sizes if s >= size), size)


_OFTEN = 1024
_GROWTH = 4
_LITTLE = 4e6  # operations on an element: some milliseconds, which is little beside a compile


def is_worthwhile(work: float, more: float) -> bool:
    """True if a program may do so much more work than is needed, to save a compile."""
    return more - work <= max(work, _LITTLE)


def bucket_for(size: int, work: Callable[[int], float]) -> int:
    """The bucket of jaten's choice: as large as is worthwhile, so that sizes that grow compile rarely.

    Args:
        size: the size.
        work: the work of the program for another size.
    """
    least, needed = rounded(size, POWERS), work(size)
    bucket = max(_OFTEN, _GROWTH * least)
    while bucket > least and not is_worthwhile(needed, work(bucket)):
        bucket //= 2
    return bucket
