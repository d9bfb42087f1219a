"""Operators on functions, such as `torch.cond`: their checks of operands, for tensors of the device `jax`.

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
    """A replacement with the name of the original."""
    return lambda known: functools.wraps(known)(make(known))


@_wrapped
def storages(known: Any) -> Callable[..., Any]:
    """`get_tensor_storages`, for which a tensor of the device has its carrier's storage."""
    return lambda tensor: known(tensor._carrier if isinstance(tensor, Tensor) else tensor)


def environment_with(when_loaded: Callable[[], None]) -> Callable[[Any], Callable[..., Any]]:
    """`setup_compilation_env`, in which Dynamo checks a function before it runs, even outside of compiled programs.

    Args:
        when_loaded: called in it, since Dynamo is imported there.
    """

    def make(known: Any) -> Callable[..., Any]:
        @contextlib.contextmanager
        def environment(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with captured(), known(*args, **kwargs) as backend:
                when_loaded()
                yield backend

        return environment

    return _wrapped(make)


def operand_check_with(first: Callable[[], None]) -> Callable[[Any], Callable[..., Any]]:
    """`_validate_sdpa_input`, the first that `flex_attention` calls, of whatever device its operands are.

    Args:
        first: called before it; Dynamo calls it while it captures.
    """

    @functools.wraps(first)
    def loaded() -> None:
        first()

    setattr(loaded, "_dynamo_marked_constant", True)  # noqa: B010  # as torch.compiler.assume_constant_result

    def make(known: Any) -> Callable[..., Any]:
        def check(*args: Any, **kwargs: Any) -> None:
            loaded()
            known(*args, **kwargs)

        return check

    return _wrapped(make)


@_wrapped
def device_check(known: Any) -> Callable[..., Any]:
    """`_validate_device`, which accepts the device for `flex_attention`."""

    def validate_device(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "jax":
            known(query, key, value)

    return validate_device


@_wrapped
def example(known: Any) -> Callable[..., Any]:
    """`_from_fun`, which makes an example of an operand: for a tensor of the device, one like it."""

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
    """`_collect_fake_inputs`, which finds the recorded values of operands: for a tensor of the device its carrier.

    Versions of torch that support subclasses here accept that; earlier ones accept only fake tensors.
    """

    def value_of(operand: Any) -> list[Any]:
        node = operand.node if isinstance(operand, torch.fx.Proxy) else operand
        value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
        inside = _in_transforms(value) if isinstance(value, torch.Tensor) else value
        return [inside._carrier] if isinstance(inside, Tensor) else known([operand])

    return lambda operands: [value for operand in operands for value in value_of(operand)]
