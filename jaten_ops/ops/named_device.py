"""Operators whose arguments name the device of the result, as `zeros_like(x, device=...)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..registry import OWN
from ..registry.handlers import CHOSEN, handler_of
from ..schema import OpSpec
from ..tracing import opaque

_NAME = "device"
_OF_OTHER_THINGS = frozenset({"_assert_tensor_metadata", "_pin_memory", "_resize_output", "is_pinned"})
"""Operators whose device is not that of the result."""


def names_device(spec: OpSpec) -> bool:
    """True if an argument says on which device the results are. Those of gradients are beside their arguments."""
    if not spec.takes_device or spec.overload in _OF_OTHER_THINGS:
        return False
    if spec.namespace == "jaten":
        return not spec.packet.endswith("_vjp")
    return spec.name in OWN and any(a.name == _NAME and a.is_of_storage for a in spec.arguments)


def _position(spec: OpSpec) -> int:
    return next(i for i, a in enumerate(spec.arguments) if a.name == _NAME)


def device_named(spec: OpSpec) -> Callable[[Sequence[Any], dict[str, Any]], torch.device | None]:
    """A function that gives the device which the arguments of a call name."""
    at = _position(spec)

    def find(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device | None:
        device = args[at] if at < len(args) else kwargs.get(_NAME)
        return None if device is None else torch.device(device)

    return find


def with_named_device(spec: OpSpec, run: Callable[..., Any], op: Callable[[], Any]) -> Callable[..., Any]:
    """An implementation of an operator for all devices, from that for plain tensors.

    What is to be on the device `jax` is made there, by the handler of the operator; what is to be elsewhere is moved.

    Args:
        spec: the operator, of which `names_device` is true.
        run: its implementation for plain tensors.
        op: gives the operator.
    """
    operator, named = functools.cache(op), device_named(spec)

    @opaque
    def call(*args: Any, **kwargs: Any) -> Any:
        device = named(args, kwargs)
        if device is None:
            return run(*args, **kwargs)
        if device.type == "jax":
            args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(device), (args, kwargs))
            return (CHOSEN.get(id(operator())) or handler_of(operator()))(*args, **kwargs)
        return _moved(run(*args, **kwargs), device)

    return call


def differentiable_with_named_device(spec: OpSpec, run: Callable[..., Any]) -> Callable[..., Any]:
    """An implementation at autograd's key, from one of results beside the operands: these move as by `Tensor.to`."""
    named, at = device_named(spec), _position(spec)

    @opaque
    def call(*args: Any, **kwargs: Any) -> Any:
        device = named(args, kwargs)
        if device is None:
            return run(*args, **kwargs)
        kwargs.pop(_NAME, None)
        return _moved(run(*args[:at], *[None for _ in args[at : at + 1]], *args[at + 1 :], **kwargs), device)

    return call


def _moved(results: Any, device: torch.device) -> Any:
    if isinstance(results, tuple | list):
        return type(results)([_moved(result, device) for result in results])
    if not isinstance(results, torch.Tensor):
        return results
    wanted = results.device.type if device.index is None else results.device
    return results if device == torch.device(wanted) else results.to(device)
