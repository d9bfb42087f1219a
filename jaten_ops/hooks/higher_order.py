"""Operators on functions, as `torch.cond`: what they ask of their operands, for tensors of the device `jax`.

They look at their operands' memory, which on the device is not torch's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..tensor.tensor import Tensor
from ..tracing import captured


def _wrapped(make: Callable[[Any], Callable[..., Any]]) -> Callable[[Any], Callable[..., Any]]:
    """A replacement that has the name of what it replaces."""
    return lambda known: functools.wraps(known)(make(known))


@_wrapped
def storages(known: Any) -> Callable[..., Any]:
    """`get_tensor_storages`, for which a tensor of the device lies where its carrier does."""
    return lambda tensor: known(tensor._carrier if isinstance(tensor, Tensor) else tensor)


def environment_with(when_loaded: Callable[[], None]) -> Callable[[Any], Callable[..., Any]]:
    """`setup_compilation_env`, in which Dynamo looks at a function before it is run, outside of compiled programs, too.

    Args:
        when_loaded: is called in it, as it is where Dynamo is imported.
    """

    def make(known: Any) -> Callable[..., Any]:
        @contextlib.contextmanager
        def environment(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with captured(), known(*args, **kwargs) as backend:
                when_loaded()
                yield backend

        return environment

    return _wrapped(make)


@_wrapped
def device_check(known: Any) -> Callable[..., Any]:
    """`_validate_device`: `flex_attention` runs on the device as on the best of those that it knows."""

    def validate_device(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "jax":
            known(query, key, value)

    return validate_device


@_wrapped
def example(known: Any) -> Callable[..., Any]:
    """`_from_fun`, which makes an example of an operand: of a tensor of the device, one that is like it."""

    def make(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return known(t)
        grad = t.requires_grad
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device, requires_grad=grad)

    return make


def _in_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that `torch.func`'s transforms have wrapped: a batch, or the values that are differentiated."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


@_wrapped
def operand_values(known: Any) -> Callable[..., Any]:
    """`_collect_fake_inputs`, which finds the recorded values of operands: of a tensor of the device its carrier.

    Versions of torch that know of subclasses here take that; those before refuse all that is no fake tensor itself.
    """

    def value_of(operand: Any) -> list[Any]:
        node = operand.node if isinstance(operand, torch.fx.Proxy) else operand
        value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
        inside = _in_transforms(value) if isinstance(value, torch.Tensor) else value
        return [inside._carrier] if isinstance(inside, Tensor) else known([operand])

    return lambda operands: [value for operand in operands for value in value_of(operand)]
