"""Functions of JAX in torch programs: tensors of the device as arguments of `jax.numpy.sin`, also between two graphs.

JAX 0.10 asks objects for an array by `__jax_array__` in operators and in functions that convert their arguments first,
and no longer where it compiles a function for its arguments. There it looks classes up in two tables.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from ..tensor.tensor import Tensor
from ..tracing import opaque
from .ledger import Patch


def add_type(table: dict[type, Callable[[Any], Any]]) -> None:
    """Adds the class of tensors to the table of what JAX takes: a tensor has the type of its array."""
    table[Tensor] = _type_of


def add_values(table: Any) -> None:
    """Adds the class of tensors to the table of what stands for an argument: for a tensor its array."""
    table[Tensor] = Tensor.__jax_array__


@opaque
def _type_of(tensor: Tensor) -> Any:
    array = tensor.__jax_array__()
    # a program would read the tensor when it is compiled, which may be after a later write to it
    if isinstance(array, jax.core.Tracer) or isinstance(jax.lax.full((), 0), jax.core.Tracer):
        raise RuntimeError("a program that JAX traces takes no tensor. Fix: jax.numpy.asarray(tensor)")
    return jax.typeof(array)


def leave_out(known: Callable[..., Any]) -> Callable[..., Any]:
    """`check_file`, by which Dynamo calls JAX's own code between its graphs, as it does TensorFlow's, and its dtypes'.

    It traces the file of `jax.sharding.PartitionSpec`, which programs make of names; see `partition_specs`.
    """
    modules = jax, sys.modules.get("ml_dtypes", jax)  # which JAX has loaded
    code = tuple([f"{Path(str(module.__file__)).parent}{os.sep}" for module in modules])
    specs = f"{os.sep}partition_spec.py"

    @functools.wraps(known)
    def check_file(filename: str | None, is_inlined_call: bool = False) -> Any:
        found = known(filename, is_inlined_call)
        if filename is None or not filename.startswith(code) or filename.endswith(specs):
            return found
        return type(found)(True, "the code of JAX")

    return check_file


ROWS = [
    Patch(
        "torch._dynamo.trace_rules:check_file",
        leave_out,
        "Dynamo would trace the code of JAX's functions, and fail at what is C++",
        "hooks/test_jax_arguments",
        when="Dynamo",
        for_device=False,
        optional=True,
        takes="filename is_inlined_call",
        loss="torch's errors: JAX's functions in a compiled function, but for those of jaten_ops.call_jax",
    ),
    *(
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
    ),
]
