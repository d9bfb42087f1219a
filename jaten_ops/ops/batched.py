"""`jax.vmap` of a kernel, by the batch dimension of each tensor among its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..kernel_base import promotion

_ARRAYS = (jax.Array, np.ndarray)


def call_batch(
    fn: Callable[..., Any], in_dims: Sequence[int], batch_size: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The results of a batch of calls, stacked in their first dimension.

    Args:
        fn: the kernel, of positional and keyword arguments.
        in_dims: the batch dimension of each tensor, in the order of the arguments; -1 for none.
        batch_size: the number of calls.
        args: the arguments with the batch in them.
        kwargs: keyword-only ones, in the schema's order.
    """
    leaves, structure = jax.tree.flatten((tuple(args), tuple(kwargs.values())))  # a dict's keys would be sorted
    # numbers that are traced are arrays of no dimension, too: they come with the arrays, of which there may be fewer
    arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS) and not promotion.is_scalar(leaf)]
    dims = tuple([None if d < 0 else d for d in in_dims])

    def one(*own: Any) -> Any:
        filled = list(leaves)
        for i, value in zip(arrays, own, strict=True):
            filled[i] = value
        own_args, own_kwargs = jax.tree.unflatten(structure, filled)
        return fn(*own_args, **dict(zip(kwargs, own_kwargs, strict=True)))

    return jax.vmap(one, in_axes=dims, axis_size=batch_size)(*[leaves[i] for i in arrays])
