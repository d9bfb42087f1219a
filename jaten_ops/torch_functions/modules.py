"""A torch module as a function of its parameters and buffers."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import torch

from jaten_ops.tensor.tensor import array_for_jax

_locks: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class ModuleArrays:
    """The arrays of a module by name; of several names of one the first.

    Attributes:
        parameters: those that require gradients.
        frozen: the other parameters.
        buffers: those that may be written to.
    """

    parameters: dict[str, jax.Array]
    frozen: dict[str, jax.Array]
    buffers: dict[str, jax.Array]


def arrays_of(module: torch.nn.Module) -> ModuleArrays:
    """The arrays of a module; those of one that is not on the device are copies."""
    parameters = dict(module.named_parameters())
    moved = {name: array_for_jax(p.detach().to("jax")) for name, p in parameters.items()}
    return ModuleArrays(
        {name: a for name, a in moved.items() if parameters[name].requires_grad},
        {name: a for name, a in moved.items() if not parameters[name].requires_grad},
        {name: array_for_jax(b.detach().to("jax")) for name, b in module.named_buffers()},
    )


def of_module(module: torch.nn.Module, mutable: bool, training: bool | None = None) -> Callable[..., Any]:
    """A function of a dict of parameters and buffers by name, and of the module's own arguments.

    A parameter that does not require gradients has none, nor has a buffer. A parameter with several names has the value
    of the first one given, and its gradient at each. The module's writes to buffers are dropped, unless `mutable`: then
    the function also returns the buffers. The module is in the mode `training`, or else in the one that it is in.
    """
    lock = _locks.setdefault(module, threading.RLock())

    def call(given: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        with lock, _in_mode(module, training):  # torch replaces the module's tensors during the call
            state = _state(module, given)
            result = torch.func.functional_call(module, state, args, kwargs)
        if not mutable:
            return result
        return result, {name: state[name].detach() for name, _ in module.named_buffers(remove_duplicate=False)}

    return call


@contextlib.contextmanager
def _in_mode(module: torch.nn.Module, training: bool | None) -> Iterator[None]:
    """A context with a module in a mode, with all of its parts unless it is in that mode anyway."""
    if training in (None, module.training):
        yield
        return
    before = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, mode in before.items():
            part.training = mode


def _names(module: torch.nn.Module) -> dict[int, tuple[torch.Tensor, list[str]]]:
    """The module's own parameters and buffers, each with its names."""
    found: dict[int, tuple[torch.Tensor, list[str]]] = {}
    both = *module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)
    for name, own in both:
        found.setdefault(id(own), (own, []))[1].append(name)
    return found


def _state(module: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A tensor for each name of the module: the given one, or else its own, of a buffer a copy."""
    state = dict(given)
    for own, names in _names(module).values():
        values = [given[n] for n in names if n in given]
        if not values:
            if isinstance(own, torch.nn.Parameter):
                continue
            values = [own.detach().clone()]
        value = values[0] if len(values) == 1 else _Tied.apply(*values)
        if not own.requires_grad:
            value = value.detach()
        state.update(dict.fromkeys(names, value))
    return state


class _Tied(torch.autograd.Function):
    """The first of the values given for one parameter; its gradient goes to all of them."""

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> torch.Tensor:
        ctx.count = len(values)
        return values[0].clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (gradient,) * ctx.count
