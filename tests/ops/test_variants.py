"""In-place and out= forms that no OpInfo reaches: lists written to, and arguments besides the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}


def _lists(n: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.rand(s, generator=generator) for s in ((3,), (2, 2))] for _ in range(n)]


def _empty(n: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.empty(0, dtype=dtype) for _ in range(n)]


def _fused_adam_(ops: Any) -> Any:
    lists, steps = _lists(4), [torch.tensor(1.0), torch.tensor(1.0)]
    return ops._fused_adam_(*lists, [], steps, **ADAM), lists


def _fused_adam_out(ops: Any) -> Any:
    lists, steps, (out,) = _lists(4), [torch.tensor(1.0), torch.tensor(1.0)], _lists(1)
    return ops._fused_adam.out(*lists, [], steps, **ADAM, out=out), lists, out


def _unscale_(ops: Any) -> Any:
    (grads,), found = _lists(1), torch.tensor(0.0)
    grads[0][0] = torch.inf
    return ops._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor(0.5)), grads, found


def _update_scale_out(ops: Any) -> Any:
    scale, growth, found, out = (
        torch.tensor(4.0),
        torch.tensor(1, dtype=torch.int32),
        torch.tensor(0.0),
        torch.tensor(0.0),
    )
    return ops._amp_update_scale.out(scale, growth, found, 2.0, 0.5, 2, out=out), scale, growth, out


def _batch_norm_out(ops: Any) -> Any:
    (x,) = (torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0)),)
    statistics, out = [torch.zeros(3), torch.ones(3)], _empty(3)
    result = ops._native_batch_norm_legit.out(
        x, torch.ones(3), torch.ones(3), *statistics, True, 0.5, 0.6, out=out[0], save_mean=out[1], save_invstd=out[2]
    )
    return result, statistics, out


def _batch_norm_with_update_out(ops: Any) -> Any:
    x = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))
    statistics, out = [torch.zeros(3), torch.ones(3)], [*_empty(3), *_empty(1, torch.uint8)]
    named = dict(zip(("out", "save_mean", "save_invstd", "reserve"), out, strict=True))
    result = ops._batch_norm_with_update.out(x, torch.ones(3), torch.ones(3), *statistics, 0.5, 0.6, **named)
    return result, statistics, out


def _foreach_add_out(ops: Any) -> Any:
    one, two, out = _lists(3)
    return ops._foreach_add.List_out(one, two, out=out), one, out


def _foreach_lerp_(ops: Any) -> Any:
    one, two = _lists(2)
    return ops._foreach_lerp_.Scalar(one, two, 0.25), one, two


CALLS: list[Callable[[Any], Any]] = [
    *(_fused_adam_, _fused_adam_out, _unscale_, _update_scale_out, _batch_norm_out, _batch_norm_with_update_out),
    *(_foreach_add_out, _foreach_lerp_),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.strip("_"))
def test_all_that_is_written(call: Callable[[Any], Any]) -> None:
    torch.testing.assert_close(call(torch.ops.jaten), call(torch.ops.aten))
