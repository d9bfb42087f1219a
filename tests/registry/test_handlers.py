"""The table of handlers and what torch's dispatcher has of it."""

from __future__ import annotations

import pytest
import torch

from jaten_ops.dispatch import redirects
from jaten_ops.dispatch.partitioned_products import OVER_A_MESH
from jaten_ops.errors import DuplicateRegistrationError
from jaten_ops.registry import handlers
from jaten_ops.registry.handlers import ABOVE_AUTOGRAD, BELOW_PYTHON, CHOSEN, HANDLERS, handler, handler_of


@pytest.mark.parametrize("operator", HANDLERS)
def test_handlers_are_of_operators_that_torch_has(operator: str) -> None:
    """A name with a slip in it would never be called."""
    namespace, _, name = operator.partition("::")
    packet, _, overload = name.partition(".")
    assert getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default").name() == operator


def test_torch_has_the_handlers_at_their_keys() -> None:
    rows = [(operator, key) for operator, row in HANDLERS.items() for key in row.keys]
    assert {key for _, key in rows} == {ABOVE_AUTOGRAD, BELOW_PYTHON}
    assert [row for row in rows if not torch._C._dispatch_has_kernel_for_dispatch_key(*row)] == []


def test_torch_has_nothing_above_autograd_but_handlers() -> None:
    """Handlers above autograd also run in inference mode, where `__torch_dispatch__` gets the composite operator."""
    found = {o for o in torch._C._dispatch_get_registrations_for_dispatch_key(ABOVE_AUTOGRAD) if o.startswith("aten::")}
    found -= {
        f"aten::{name}" for name in OVER_A_MESH
    }  # which stand there once this process has had a tensor over a mesh
    # those of overrides stay there while there are other threads, and may stand above handlers
    overridden = {op.name() for r in redirects._ALL.values() for op, _ in redirects.operators(r._spec)}
    handled = {operator for operator, row in HANDLERS.items() if ABOVE_AUTOGRAD in row.keys}
    assert found - overridden == handled - overridden


def test_an_operator_has_one_handler() -> None:
    with pytest.raises(DuplicateRegistrationError, match=r"aten::copy_.*handler.*jaten_ops\.dispatch\.copies"):
        handler("aten::copy_")(lambda target, source: target)
    assert HANDLERS["aten::copy_"].run.__module__ == "jaten_ops.dispatch.copies"


def test_an_operator_is_chosen_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(handlers, "_choose", lambda func: asked.append(func) or abs)
    operator = type("Operator", (), {})()
    try:
        assert handler_of(operator) is handler_of(operator) is CHOSEN[id(operator)] is abs
        assert asked == [operator]
    finally:
        del CHOSEN[id(operator)]
