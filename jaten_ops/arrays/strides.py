"""Strides in elements, as in torch: tests for contiguous and dense ones, and the order of dimensions in memory."""

from __future__ import annotations

Shape = tuple[int, ...]


def row_major(shape: Shape) -> Shape:
    """The strides of a contiguous tensor, in elements."""
    strides = [1] if shape else []
    for size in reversed(shape[1:]):  # the first may depend on values, and then cannot be compared
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))


def is_row_major(shape: Shape, stride: Shape) -> bool:
    """True if a tensor is contiguous; the strides of one with at most one element do not matter."""
    if 0 in shape:
        return True
    step = 1
    for size, s in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1:
            if s != step:
                return False
            step *= size
    return True


def extent(shape: Shape, stride: Shape) -> int:
    """The elements of memory from a tensor's first element to its last."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def is_dense(shape: Shape, stride: Shape) -> bool:
    """True if a tensor's elements fill a stretch of memory without gaps, in any order of its dimensions."""
    step = 1
    for s, n in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1):
        if s != step and n:
            return False
        step *= n
    return True


def order_of(shape: Shape, stride: Shape) -> Shape | None:
    """The dimensions of a dense tensor by decreasing stride; None if the tensor is contiguous or not dense.

    A dimension of one element, whose stride does not matter, stays in its place.
    """
    if is_row_major(shape, stride) or not is_dense(shape, stride):
        return None
    moving = iter(sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: -stride[d]))
    return tuple(d if n == 1 else next(moving) for d, n in enumerate(shape))


def strides_in(shape: Shape, order: Shape) -> Shape:
    """The strides of a dense tensor whose dimensions have an order in memory."""
    along = row_major(tuple(shape[d] for d in order))
    return tuple(along[order.index(d)] for d in range(len(shape)))
