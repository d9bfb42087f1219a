"""Direct calls of operators that name a device have their results there, with gradients, as ATen's have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch import Tensor

import jaten_ops

from ..harness.crossings import crossed

jaten = torch.ops.jaten


@jaten_ops.op("jaten_placed::pair(Tensor x, Device? device=None) -> (Tensor, Tensor)", differentiable=["x"])
def _pair(x):
    return x * 2, jnp.sum(x)


@jaten_ops.op("jaten_placed::by_value(Tensor x, Device place) -> Tensor", differentiable=["x"])
def _by_value(x, place):
    return x * len(place.type)


@jaten_ops.op("jaten_placed::counts(Tensor x, *, Device? device=None) -> Tensor[]")
def _counts(x):
    return [jnp.argsort(x), x > 0]


CALLS: dict[str, Callable[[Tensor, Any], Any]] = {
    "full": lambda x, device: jaten.full([3], 2.0, device=device),
    "arange": lambda x, device: jaten.arange(3, device=device),
    "zeros_like": lambda x, device: jaten.zeros_like(x, device=device),
    "new_full": lambda x, device: jaten.new_full(x, [2], 3.0, device=device),
    "rand_like": lambda x, device: jaten.rand_like(x, device=device) * 0,
    "_to_copy": lambda x, device: jaten._to_copy(x, device=device, dtype=torch.float64),
    "to.device": lambda x, device: jaten.to.device(x, device, torch.float32),
    "linspace": lambda x, device: jaten.linspace(0.0, 1.0, 3, device=device),
    "two results of a user's": lambda x, device: torch.ops.jaten_placed.pair(x, device)[1],
    "a list of a user's": lambda x, device: torch.ops.jaten_placed.counts(x, device=device)[0],
}
DEVICES = ["cpu", "jax", "jax:0", torch.device("meta")]


@pytest.mark.parametrize(("name", "named", "given"), crossed(CALLS, DEVICES, ["cpu", "jax"]))
def test_results_are_on_the_device_that_a_call_names(name: str, named: Any, given: str) -> None:
    result = CALLS[name](torch.ones(3).to(given), named)
    assert result.device.type == torch.device(named).type
    if result.device.type != "meta":
        result = result.cpu()
        torch.testing.assert_close(result, CALLS[name](torch.ones(3), None if name != "to.device" else "cpu"))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_it_holds_in_each_mode(mode: Any) -> None:
    with mode():
        for given, named in (("cpu", "jax"), ("jax", "cpu")):
            for result in torch.ops.jaten_placed.pair(torch.ones(3).to(given), named):
                assert result.device.type == named


@pytest.mark.parametrize("given", ["cpu", "jax"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["_to_copy", "two results of a user's"])
def test_gradients_come_back(name: str, compiled: bool, given: str) -> None:
    torch._dynamo.reset()
    x = torch.ones(3, device=given, requires_grad=True)
    other = "jax" if given == "cpu" else "cpu"

    def call(x: Tensor) -> Tensor:
        return (CALLS[name](x, other) * 3).sum()

    (torch.compile(call, backend="jaten") if compiled else call)(x).backward()
    assert x.grad is not None and x.grad.device.type == given and x.grad.tolist() == [3, 3, 3]


def test_another_device_argument_is_a_value_for_the_kernel() -> None:
    for device in ("cpu", "jax"):
        assert torch.ops.jaten_placed.by_value(torch.ones(2, device=device), "meta").tolist() == [4, 4]


def test_a_device_that_is_not_there_is_an_error_of_torch() -> None:
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|cuda|NVIDIA"):
            jaten.zeros_like(torch.ones(2), device="cuda")
