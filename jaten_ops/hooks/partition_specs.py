"""`jax.sharding.PartitionSpec` in functions that Dynamo captures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from jax.sharding import PartitionSpec


def made_in_captures(call: Callable[..., Any]) -> Callable[..., Any]:
    """`UserDefinedClassVariable.call_function`, which makes a `PartitionSpec` of names that Dynamo knows.

    Dynamo would trace its constructor, which is C++. Equal ones are one object, which becomes a global of the captured
    function: Dynamo then treats it as one that was there before.
    """

    @functools.wraps(call)
    def call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.value is not PartitionSpec:
            return call(self, tx, args, kwargs)
        spec = PartitionSpec(*map(_known, args), **{name: _known(value) for name, value in kwargs.items()})
        name = tx.output.install_global_by_id("partition_spec", spec)
        source = torch._dynamo.source.GlobalSource(name)  # Dynamo is loaded: it calls this
        return torch._dynamo.variables.base.VariableTracker.build(tx, spec, source)

    return call_function


def _known(variable: Any) -> Any:
    """The value of one of Dynamo's variables, an entry of a `PartitionSpec`."""
    is_open = getattr(variable, "value", None) is PartitionSpec.UNCONSTRAINED  # which to Dynamo is no constant
    return PartitionSpec.UNCONSTRAINED if is_open else variable.as_python_constant()
