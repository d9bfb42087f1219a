"""The rules by which an operator's handler is chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jaten_ops.dispatch.handler_rules import RULES, rule_for
from jaten_ops.errors import MissingKernelError
from jaten_ops.registry.handlers import HANDLERS, handler_of

_aten = torch.ops.aten

# the operators that each rule takes; each of them but the last is taken by a later rule as well
TAKEN: dict[str, list[Any]] = {
    "registered": [_aten.copy_.default, _aten.detach.default, _aten._to_copy.default, _aten.matmul.default],
    "collective": [torch.ops.c10d.allreduce_.default],
    "view": [_aten.view.default, _aten.transpose.int, _aten.split.Tensor],
    "in-place view": [_aten.t_.default, _aten.squeeze_.dim],
    "variant": [_aten.add_.Tensor, _aten.add.out, _aten._foreach_add_.List],
    "kernel": [_aten.add.Tensor, _aten.mm.default],
    "third party": [torch.ops.rngprims.philox_rand.default],
    "composition": [_aten.tensordot.default, _aten.layer_norm.default],
}


@pytest.mark.parametrize(("name", "func"), [(n, f) for n, funcs in TAKEN.items() for f in funcs], ids=str)
def test_rule(name: str, func: Any) -> None:
    assert rule_for(func).name == name


def test_every_rule_is_here() -> None:
    assert [rule.name for rule in RULES] == list(TAKEN)
    assert callable(handler_of(_aten.relu.default))


def test_registered_handlers_come_first() -> None:
    """Before the view op, the variant and the kernel that other rules would make."""
    for func in TAKEN["registered"]:
        assert handler_of(func) is HANDLERS[func.name()].run


def test_an_operator_that_nothing_runs_says_so() -> None:
    with pytest.raises(MissingKernelError, match="jaten::_cudnn_init_dropout_state has no kernel"):
        RULES[-1].make(_aten._cudnn_init_dropout_state.default)
