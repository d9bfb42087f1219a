"""Dynamo's guards on tensors of the device: what they notice, and that there is nothing of what is inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import counters
from torch.testing._internal.two_tensor import TwoTensor

from tests.harness.crossings import crossed


def _first() -> torch.Tensor:
    return torch.randn(6, 4, device="jax")


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "values": lambda x: x + 1,
    "dtype": lambda x: x.double(),
    "size": lambda x: x[:3].clone(),
    "rank": lambda x: x[0].clone(),
    "strides": lambda x: x.reshape(4, 6).t(),
    "a part": lambda x: torch.cat([x, x], 1)[:, :4],
    "an offset": lambda x: torch.cat([x, x])[6:],
    "requires a gradient": lambda x: x.clone().requires_grad_(),
    "a parameter": lambda x: torch.nn.Parameter(x),
    "on the CPU": lambda x: x.cpu(),
}
SAME = ("values", "an offset")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "dynamic"), crossed(list(OTHERS), [False, None, True]))
def test_what_differs_is_noticed(name: str, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    fn = torch.compile(lambda x: (x * 2).cumsum(0), backend="jaten", dynamic=dynamic)
    first = _first()
    fn(first)
    compiled = counters["stats"]["unique_graphs"]
    x = OTHERS[name](first)
    for one in (x, first, x):
        torch.testing.assert_close(fn(one).detach().cpu(), (one.detach().cpu() * 2).cumsum(0))
    if dynamic is False and name in (*SAME, "dtype", "size", "requires a gradient"):
        assert counters["stats"]["unique_graphs"] == compiled + (name not in SAME)


def test_nothing_inside_is_guarded() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch.compile(fn, backend="jaten")(_first())
    guards = str(_debug_get_cache_entry_list(fn.__code__)[0].guard_manager)
    assert "TENSOR_MATCH: check_tensor(L['x']" in guards
    assert not any(text in guards for text in ("_carrier", "__tensor_flatten__", "___check_metadata"))


def test_tensors_of_other_classes_keep_their_guards() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch.compile(fn, backend="aot_eager")(TwoTensor(torch.ones(2), torch.ones(2)))
    guards = str(_debug_get_cache_entry_list(fn.__code__)[0].guard_manager)
    assert "___check_metadata" in guards and "__tensor_flatten__" in guards
