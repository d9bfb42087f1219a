"""The checks of ops can fail: each gets an op that is wrong in one way, and ATen's own, which is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.harness import checks, replay

SINH, COSH = torch.ops.aten.sinh.default, torch.ops.aten.cosh.default
DERIVATIVES = (checks.gradients, checks.second, checks.jvp)


@pytest.mark.parametrize("check", DERIVATIVES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_wrong_derivative_is_found(check: Callable, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "op_named", lambda _: SINH)
    right = check("sinh", dtype, 2)
    assert right.compared and not right.failures and not right.skipped
    monkeypatch.setattr(checks, "op_named", lambda _: COSH)
    wrong = check("sinh", dtype, 2)
    assert len(wrong.failures) == wrong.compared == right.compared
    assert wrong.failures[0].startswith("sinh(")


@pytest.mark.parametrize("check", DERIVATIVES)
def test_an_absent_derivative_is_found(check: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "op_named", lambda _: lambda x: torch.sinh(x.detach()))
    assert check("sinh", torch.float64, 1).failures


@pytest.mark.parametrize("check", DERIVATIVES)
def test_nothing_to_compare_is_no_success(check: Callable) -> None:
    assert check("sign", torch.int64, 1).skipped == "no differentiable call is reached"
    assert "free in sign or phase" in check("linalg.svd", torch.float64, 1).skipped


WRONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "values": torch.cosh,
    "dtype": lambda x: torch.sinh(x.double()),
    "shape": lambda x: torch.sinh(x)[None],
    "an error": lambda x: x.no_such_method(),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_result_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "op_named", lambda _: SINH)
    assert not checks.values("sinh", torch.int8, 1).failures
    monkeypatch.setattr(replay, "op_named", lambda _: WRONG[wrong])
    assert checks.values("sinh", torch.int8, 1).failures


def test_a_wrong_fake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "op_named", lambda _: lambda x: torch.sinh(x) if x.device.type == "cpu" else x)
    found = checks.values("sinh", torch.int8, 1)
    assert found.failures and "the fake says" in found.failures[0]


def test_a_wrong_graph_is_found_unless_none_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(call: Any, backend: str, sample: Any) -> Any:
        if backend == "jaten":
            return torch.cosh(sample.input)
        if not capturable:
            raise RuntimeError("no graph")
        return None

    monkeypatch.setattr(checks, "_captured_whole", run)
    capturable = True
    assert checks.compiled("sinh", torch.float32, 1).failures
    capturable = False
    assert checks.compiled("sinh", torch.float32, 1).skipped == "Dynamo cannot capture this: no graph"
    assert not checks.compiled("cosh", torch.float32, 1).failures
