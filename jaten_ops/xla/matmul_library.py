"""The choice of the library that computes a CPU program's float32 matrix products: YNNPACK or Eigen.

XLA has one option for a whole program. Measured on one core of an Intel processor with AVX-512, Eigen takes 10 % less
time for a product, unless its second factor is transposed: it first copies that, which takes about as long as it saves
with 700 rows of the first factor, and several times longer with large strides. That of a
transposed first factor is Eigen's in either case, and small products of a batch are equally fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_ROWS = 800  # with as many rows Eigen saves the time of copying a transposed second factor
_FAR = 2048  # with as many terms the elements of a transposed factor collide in the caches
_FAR_COSTS, _OF_BATCH_COSTS = 4.0, 0.25  # relative cost of copying an element then, and in a batch
_HALF = ("bf16", "f16")

_DIMS = r"\[([\d, ]*)\]"
_STEP = re.compile(
    r"func\.func (\w+)"
    rf"|(%\w+) = stablehlo\.transpose %\w+, dims = {_DIMS}"
    rf"|stablehlo\.dot_general (%\w+), (%\w+),(?: batching_dims = {_DIMS} x {_DIMS},)? contracting_dims = {_DIMS}"
    rf" x {_DIMS}.*?: \(tensor<([^>]*)>, tensor<([^>]*)>\)"
)


class Product(NamedTuple):
    """A product of `batch` pairs of matrices, (rows, terms) and (terms, columns).

    Attributes:
        first_transposed, second_transposed: whether a factor is transposed in memory.
        is_known: whether that is known; it is not for arguments of functions inside the program.
    """

    dtype: str
    batch: int
    rows: int
    columns: int
    terms: int
    first_transposed: bool
    second_transposed: bool
    is_known: bool = True


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n.strip()]


def _type(text: str) -> tuple[list[int], str]:
    *shape, dtype = text.split("x")
    return [int(n) for n in shape], dtype


def matmuls_in(text: str) -> Iterator[Product]:
    """The matrix products of a program, from its text in StableHLO; transposing a factor is part of it."""
    swapped, is_inner = set[str](), False
    for found in _STEP.finditer(text):
        function, name, dims, a, b, batch, _, of_a, of_b, type_a, type_b = found.groups()
        if function:  # names are local to a function
            swapped.clear()
            is_inner = function == "private"
        elif name:
            *first, last, before = order = _numbers(dims) if dims.count(",") else [0, 0]
            if first == list(range(len(first))) and (last, before) == (len(order) - 1, len(order) - 2):
                swapped.add(name)
        else:
            (shape_a, dtype), (shape_b, _) = _type(type_a), _type(type_b)
            sums, at_b = _numbers(of_a), _numbers(of_b)
            several, terms = math.prod(shape_a[d] for d in _numbers(batch or "")), math.prod(shape_a[d] for d in sums)
            each = max(several * terms, 1)
            yield Product(
                *(dtype, several, math.prod(shape_a) // each, math.prod(shape_b) // each, terms),
                first_transposed=(max(sums, default=0) != len(shape_a) - 1) != (a in swapped),
                second_transposed=(max(at_b, default=0) == len(shape_b) - 1) != (b in swapped),
                is_known=not (is_inner and (a.startswith("%arg") or b.startswith("%arg"))),
            )


def suits_eigen(text: str) -> bool:
    """True if a program, given as StableHLO, takes less time with Eigen."""
    saved = spent = 0.0
    for product in matmuls_in(text):
        if product.dtype in _HALF:  # for which YNNPACK has kernels of its own
            return False
        if product.dtype != "f32" or 1 in (product.rows, product.columns):
            continue
        if product.first_transposed and product.is_known:
            continue
        elements = product.batch * product.terms * product.columns
        if product.batch == 1 and product.is_known:
            saved += elements * product.rows / _ROWS
        if product.second_transposed or not product.is_known:
            far = _FAR_COSTS if product.terms >= _FAR else 1.0
            spent += elements * (far if product.batch == 1 else _OF_BATCH_COSTS)
    return saved > spent
