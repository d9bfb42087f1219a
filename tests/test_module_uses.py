"""Modules that keep something, used in the ways of people: compiled, and on the device, as in eager calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaten_ops

from .programs import module_uses
from .programs.module_uses import USES, assert_same, batch, kept_by, loss
from .programs.stateful_modules import MODULES

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

WAYS = {"compiled": ("cpu", True), "on the device": ("jax", False), "compiled on the device": ("jax", True)}


NOT_TORCHS = {
    ("recurrent", "vmapped"): "torch has no batching rule for a GRU",
    ("counting", "vmapped"): "the attribute is a tensor of the transform, which ended",
    ("remembering", "vmapped"): "buffers that are written to do not batch",
    ("remembering", "gradient transform"): "buffers that are written to are captured",
}
ROUNDED = {"other dtype between": 1e-5}  # a call in single precision writes to the module's buffers


def _seen(module_name: str, use_name: str, device: str, compiled: bool) -> list[Any]:
    """All that a use sees, and then the state of the module and its gradients."""
    torch.manual_seed(0)
    module = MODULES[module_name]().double().to(device)
    call = torch.compile(module, backend="jaten") if compiled else module
    seen = [*USES[use_name](call, module, device), *kept_by(module)]
    return [t if t is None else t.detach().cpu() for t in seen]


@pytest.mark.sampled(19)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("module", MODULES)
def test_it_does_what_eager_calls_do(module: str, use: str, way: str) -> None:
    if (module, use) in NOT_TORCHS:
        with pytest.raises(RuntimeError, match=r"vmap|grad|atching rule|escaped"):
            _seen(module, use, "cpu", False)
        return
    expected = _seen(module, use, "cpu", False)
    torch._dynamo.reset()
    got = _seen(module, use, *WAYS[way])
    assert_same(got, expected, ROUNDED.get(use, 1e-7))


OF_STEPS = (
    "training", "inference between", "deep copy", "saved and loaded", "assigned", "hook before", "backward hook",
    "optimizer in the backward", "frozen between", "new weight", "swapped weight", "pruned", "anomaly mode",
    "mode of functions", "mode of operators", "FLOPs counted", "eager between", "one vector", "no grad first",
)  # fmt: skip
"""Uses that call the module and its gradients at once, which can be a step of `compile_step`."""


@pytest.mark.sampled(19)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("use", OF_STEPS)
@pytest.mark.parametrize("module", MODULES)
def test_so_does_a_step(module: str, use: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: dict[int, Any] = {}

    def trained(call: Any, device: str, seed: int = 0) -> torch.Tensor:
        def step(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = call(x)
            loss(y).backward()
            return y

        result: torch.Tensor = steps.setdefault(id(call), jaten_ops.compile_step(step))(batch(device, seed=seed))
        return result

    expected = _seen(module, use, "cpu", False)
    monkeypatch.setattr(module_uses, "trained", trained)
    got = _seen(module, use, device, False)
    assert_same(got, expected)


@pytest.mark.parametrize("module", MODULES)
def test_modules_keep_something_or_compute_parameters(module: str) -> None:
    made = MODULES[module]()
    assert made(torch.ones(4, 6)).shape == (4, 4)
