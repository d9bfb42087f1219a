"""The table of handlers, the functions that run operators on tensors of the device `jax`.

A handler takes tensors, as ATen's operator does; a kernel, of the table beside, takes arrays. Few operators have a
handler of their own: for all others `jaten_ops.dispatch.handler_rules` makes one when the operator is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch

from ..errors import DuplicateRegistrationError

F = TypeVar("F", bound=Callable[..., Any])
Handler = Callable[..., Any]

BELOW_PYTHON = "PrivateUse1"
"""The dispatch key of the device, for operators that torch calls with `__torch_dispatch__` switched off."""
ABOVE_AUTOGRAD = "AutogradPrivateUse1"
"""The dispatch key above autograd, for operators that ATen composes from others: its composition does not run."""


class Registered(NamedTuple):
    """A registered handler.

    Attributes:
        run: the handler.
        keys: dispatch keys at which it is registered, too, for calls that bypass `Tensor.__torch_dispatch__`.
    """

    run: Handler
    keys: tuple[str, ...]


HANDLERS: dict[str, Registered] = {}
"""The operators that have a handler of their own, by qualified name: "aten::copy_", "aten::set_.source_Tensor"."""

CHOSEN: dict[int, Handler] = {}
"""The handlers of all operators that have been called, by `id`: the hash of an operator is a Python function."""

RECORDED: dict[Any, Handler] = {}
"""Handlers of operators that `torch.jit.trace` does not record: they run ATen's compositions, which it does."""

_kept: list[Any] = []  # the operators of CHOSEN, kept alive so that no other object gets the `id` of one


def handler(*operators: str, keys: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Registers the decorated function as the handler of each operator on tensors of the device `jax`.

    Args:
        operators: qualified names, as in "aten::copy_" and "aten::set_.source_Tensor".
        keys: dispatch keys of torch's at which it is to stand, too: BELOW_PYTHON, ABOVE_AUTOGRAD.

    Raises:
        DuplicateRegistrationError: an operator that has a handler already.
    """

    def register(fn: F) -> F:
        for operator in operators:
            if operator in HANDLERS:
                first = HANDLERS[operator].run
                raise DuplicateRegistrationError("handler", operator, first.__module__, fn.__module__)
            HANDLERS[operator] = Registered(fn, keys)
        return fn

    return register


def handler_of(operator: Any) -> Handler:
    """The function that runs an operator from its first call on: chosen once, by `jaten_ops.dispatch.handler_rules`."""
    found = CHOSEN.get(id(operator)) or _choose(operator)
    CHOSEN[id(operator)] = found
    _kept.append(operator)
    return found


def choose_anew(name: str) -> None:
    """Has handlers chosen anew for an operator of a user and its companions, as its kernel was replaced.

    Args:
        name: as in "mylib::f".
    """
    for operator in _kept:
        found = operator.name() if isinstance(operator, torch._ops.OpOverload) else ""
        if found == name or found.startswith((f"{name}.", f"{name}_vjp", f"{name}_vmap", f"{name}_keyed")):
            CHOSEN.pop(id(operator), None)


def _undecided(operator: Any) -> NoReturn:
    raise AssertionError(f"{operator}: jaten_ops.dispatch, which has the rules, is not imported")


_choose: Callable[[Any], Handler] = _undecided


def choose_by(choose: Callable[[Any], Handler]) -> None:
    """Sets the function that makes the handler of an operator at its first call."""
    global _choose
    _choose = choose
