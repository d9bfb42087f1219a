"""Products of matrices with their factors exchanged, and the result transposed, or with a transposed copy of one.

The libraries of XLA's CPU copy a transposed factor into another order at each call: a second one before they start, a
first one while they compute. So the smaller factor is to be the transposed one. The barriers keep XLA from turning the
product around again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaten_ops.kernel_base.materialize import stored
from jaten_ops.kernel_base.platform import is_over_mesh
from jaten_ops.xla.equations import rebind
from jaten_ops.xla.memory_order import in_order

from ..dot_reductions import is_better_exchanged, is_better_turned, is_better_turned_in_batch

_FEW, _MUCH, _SOME = 32, 2**16, 2**12  # rows, and the elements of a matrix
_LEAST_TERMS = 64  # of fewer, a copy is not worth its time


def exchanged(equation: Any, arrays: Sequence[jax.Array], numbers: Any) -> jax.Array | None:
    """A product computed so; None if it is better computed as it is.

    Args:
        equation: the product.
        arrays: its factors.
        numbers: their dimensions that are contracted, and those of a batch.
    """
    first, second = arrays
    contracted, batch = numbers
    of_batch = len(batch[0])
    if first.ndim != of_batch + 2 or second.ndim != of_batch + 2 or len(contracted[0]) != 1:
        return None
    if not first.dtype == second.dtype == equation.outvars[0].aval.dtype == np.float32:
        return None
    if is_over_mesh(first) or is_over_mesh(second) or any(dims != tuple(range(of_batch)) for dims in batch):
        return None
    (along,), (with_,) = contracted
    if along == with_ == of_batch:
        return _narrow(equation, first, second)
    return _few_rows(equation, first, second, along) if with_ == 1 and not of_batch else None


def _few_rows(equation: Any, rows: jax.Array, matrix: jax.Array, along: int) -> jax.Array | None:
    """Few rows by a large transposed matrix, as a linear layer has them: the matrix by the rows, transposed.

    2 to 16 rows take half of the time. If the first factor is transposed as well the libraries compute nothing: loops
    take up to 40 times as long.
    """
    count, least = rows.shape[1 - along], _SOME if along == 0 else _MUCH
    pays = count > 1 and (along == 0 or count <= _FEW) and matrix.size >= least
    if not pays:
        return None
    columns = lax.optimization_barrier(rows if along == 0 else lax.transpose(rows, (1, 0)))
    (found,) = rebind(equation, [matrix, columns], dimension_numbers=(((1,), (0,)), ((), ())))
    # what is computed of a column of the product is no vector
    return lax.optimization_barrier(lax.transpose(lax.optimization_barrier(found), (1, 0)))


def _narrow(equation: Any, wide: jax.Array, narrow: jax.Array) -> jax.Array | None:
    """Wide transposed matrices by narrow ones: gradients of layers with few inputs, and of attention."""
    *batch, terms, rows = wide.shape
    if not is_better_exchanged(rows, narrow.shape[-1], terms):
        return _turned(equation, wide, narrow)
    leading, last = range(len(batch)), len(batch)
    numbers = ((last,), (last,)), (tuple(leading), tuple(leading))
    (found,) = rebind(equation, [narrow, wide], dimension_numbers=numbers)
    return lax.transpose(lax.optimization_barrier(found), (*leading, last + 1, last))


def _turned(equation: Any, first: jax.Array, second: jax.Array) -> jax.Array | None:
    """Transposed matrices by others, of a copy: gradients of wide layers, and of attention over few tokens."""
    *batch, terms, rows = first.shape
    columns = second.shape[-1]
    if batch:
        pays = is_better_turned_in_batch(rows, columns, terms, math.prod(batch))
    else:
        pays = terms >= _LEAST_TERMS and is_better_turned(rows, columns, terms)
    if not pays:
        return None
    leading, last = range(len(batch)), len(batch)
    # apart from what computes the factor: in a loop that transposes XLA would compute that again, and not by vectors
    copy = stored(lambda a: in_order(lax.transpose(a, (*leading, last + 1, last)), is_moved=True), first)
    numbers = ((last + 1,), (last,)), (tuple(leading), tuple(leading))
    (found,) = rebind(equation, [copy, second], dimension_numbers=numbers)
    return lax.optimization_barrier(found) if batch else found
