"""`with override(...):` in functions that Dynamo captures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..ops.override_rules import OverrideRule
from .ledger import Patch


def entered_in_captures(setup: Callable[..., Any]) -> Callable[..., Any]:
    """`InstructionTranslatorBase.setup_or_before_with`, to which an override is a context manager that it knows.

    Dynamo knows only those that are made in the function: it would leave all of the function to Python, in which
    tensors on the CPU have no overrides.
    """

    @functools.wraps(setup)
    def setup_or_before_with(self: Any, inst: Any) -> Any:
        found = self.stack[-1]
        known = getattr(found, "realize", lambda: found)()
        if isinstance(getattr(known, "value", None), OverrideRule):
            managers = torch._dynamo.variables.ctx_manager  # Dynamo is loaded: it calls this
            self.stack[-1] = managers.GenericContextWrappingVariable(known.value, source=known.source)
        return setup(self, inst)

    return setup_or_before_with


ROW = Patch(
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase.setup_or_before_with",
    entered_in_captures,
    "Dynamo does not trace a `with` block of an object that was made outside, as overrides are",
    "test_operator_overrides",
    takes="self inst",
    when="Dynamo",
    for_device=False,
    optional=True,
    loss="a function with such a block is not captured, and on the CPU it runs without the override",
)
