"""Placements in functions that Dynamo captures: `jax.sharding.PartitionSpec`, and a tensor's `redistribute`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from jax.sharding import PartitionSpec

from ..tensor.mesh_methods import redistributed
from ..tensor.tensor import Tensor


def made_in_captures(call: Callable[..., Any]) -> Callable[..., Any]:
    """`UserDefinedClassVariable.call_function`, which makes a `PartitionSpec` of names that Dynamo knows.

    Dynamo would trace its constructor, which is C++. Equal ones are made one object, as JAX does from 0.10.1 on, which
    becomes a global of the captured function: Dynamo then treats it as one that was there before.
    """
    made: dict[PartitionSpec, PartitionSpec] = {}

    @functools.wraps(call)
    def call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.value is not PartitionSpec:
            return call(self, tx, args, kwargs)
        spec = PartitionSpec(*map(_known, args), **{name: _known(value) for name, value in kwargs.items()})
        spec = made.setdefault(spec, spec)
        _allow_comparisons()
        name = tx.output.install_global_by_id("partition_spec", spec)
        source = torch._dynamo.source.GlobalSource(name)  # Dynamo is loaded: it calls this
        return torch._dynamo.variables.base.VariableTracker.build(tx, spec, source)

    return call_function


@functools.cache
def _allow_comparisons() -> None:
    """Tells Dynamo that it may compare them: in JAX 0.10.0 C++ does, and Dynamo refuses to call it otherwise."""
    if type(PartitionSpec) is not type:
        torch._dynamo.allow_c_slot(PartitionSpec)


def redistributes(call: Callable[..., Any]) -> Callable[..., Any]:
    """`TensorVariable.call_method`, which traces into `redistribute` of a tensor of the device.

    Dynamo would record the method as a node, whose arguments are to be tensors and constants.
    """

    @functools.wraps(call)
    def call_method(self: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name != "redistribute" or not issubclass(self.python_type(), Tensor):
            return call(self, tx, name, args, kwargs)
        traced = torch._dynamo.variables.base.VariableTracker.build(tx, redistributed)
        return traced.call_function(tx, [self, *args], kwargs)

    return call_method


def _known(variable: Any) -> Any:
    """The value of one of Dynamo's variables, an entry of a `PartitionSpec`."""
    is_open = getattr(variable, "value", None) is PartitionSpec.UNCONSTRAINED  # which to Dynamo is no constant
    return PartitionSpec.UNCONSTRAINED if is_open else variable.as_python_constant()
