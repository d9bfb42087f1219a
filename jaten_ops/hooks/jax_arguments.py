"""Tensors of the device as arguments of functions of JAX that are compiled, such as `jax.numpy.sin`.

JAX 0.10 asks objects for an array by `__jax_array__` in operators and in functions that convert their arguments first,
and no longer where it compiles a function for its arguments. There it looks classes up in two tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..tensor.tensor import Tensor
from .ledger import Patch


def add_type(table: dict[type, Callable[[Any], Any]]) -> None:
    """Adds the class of tensors to the table of what JAX takes: a tensor has the type of its array."""
    table[Tensor] = _type_of


def add_values(table: Any) -> None:
    """Adds the class of tensors to the table of what stands for an argument: for a tensor its array."""
    table[Tensor] = Tensor.__jax_array__


def _type_of(tensor: Tensor) -> Any:
    array = tensor.__jax_array__()
    # a program would read the tensor when it is compiled, which may be after a later write to it
    if isinstance(array, jax.core.Tracer) or isinstance(jax.lax.full((), 0), jax.core.Tracer):
        raise RuntimeError("a program that JAX traces takes no tensor. Fix: jax.numpy.asarray(tensor)")
    return jax.typeof(array)


ROWS = [
    Patch(
        table,
        add,
        "jax.numpy.sin and other functions that JAX compiles would take no tensors",
        "tensor/test_tensor",
        adds_to=kind,
        loss="JAX's error: jax.numpy.asarray(tensor) is what they take",
    )
    for table, add, kind in (
        ("jax._src.core:pytype_aval_mappings", add_type, dict),
        ("jax._src.dtypes:canonicalize_value_handlers", add_values, object),  # in front of a table in C++
    )
]
