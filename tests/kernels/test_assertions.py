"""Operators that check: against ATen's CPU kernels, and in a compiled graph, which says where the user asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ..harness.beside import Call, assert_same_outcome

OPS = torch.ops.jaten


def t(*values: Any) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values)


token = torch.zeros(())

CALLS: dict[str, Call] = {
    "zero": lambda ops: ops._assert_async(t(0.0)),
    "two values": lambda ops: ops._assert_async(t(1.0, 1.0)),
    "no value": lambda ops: ops._assert_async(t([])),
    "complex": lambda ops: ops._assert_async(t(1 + 0j)),
    "false": lambda ops: ops._assert_async.msg(t(False), "message"),
    "true": lambda ops: ops._assert_async.msg(t([[True]]), "message"),
    "functional zero": lambda ops: ops._functional_assert_async.msg(t(0), "message", token),
    "functional NaN": lambda ops: ops._functional_assert_async.msg(t(math.nan), "message", token),
    "number zero": lambda ops: ops._assert_scalar(0, "message"),
    "number": lambda ops: ops._assert_scalar(0.5, "message"),
    "functional false": lambda ops: ops._functional_assert_scalar(False, "message", token),
    "functional number": lambda ops: ops._functional_assert_scalar(3, "message", token),
    "below": lambda ops: ops.sym_constrain_range(5, min=6, max=None),
    "empty range": lambda ops: ops.sym_constrain_range(5, min=6, max=2),
    "truncated": lambda ops: ops.sym_constrain_range(5.5, min=1, max=5),
    "max of a size": lambda ops: ops.sym_constrain_range_for_size(5, min=1, max=1),
    "negative size": lambda ops: ops.sym_constrain_range_for_size(-1),
    "above": lambda ops: ops.sym_constrain_range_for_size(7, min=0, max=5),
    "functional below": lambda ops: ops._functional_sym_constrain_range(5, 6, None, token),
    "functional inside": lambda ops: ops._functional_sym_constrain_range(5, 1, 5, token),
    "functional size": lambda ops: ops._functional_sym_constrain_range_for_size(5, 1, 5, token),
    "functional negative": lambda ops: ops._functional_sym_constrain_range_for_size(-1, None, None, token),
    "sizes": lambda ops: ops._assert_tensor_metadata(t(1, 2), [3], None, None),
    "dtype": lambda ops: ops._assert_tensor_metadata(t(1, 2), [2], None, torch.float64),
    "right": lambda ops: ops._assert_tensor_metadata(t(1, 2), [2], None, torch.int64),
    "token": lambda ops: ops.mul.Tensor(ops._make_dep_token(dtype=torch.float64), t(0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_aten(name: str) -> None:
    assert_same_outcome("_functional_assert_async.msg", CALLS[name])


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    OPS._print("once")
    assert capsys.readouterr().out == "once\n"


def test_compiled() -> None:
    @torch.compile(backend="jaten", fullgraph=True)
    def positive(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.sum() > 0, "must be positive")
        return x * 2

    torch.testing.assert_close(positive(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match=r"must be positive .*test_assertions\.py:"):
        positive(-torch.ones(2))
