"""PyTorch's samples on the device `jax`, in each form that a user can call."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import jaten_ops

from ..harness import exceptions, on_device
from ..harness.replay import supported
from ..test_ops import NAMES, _hold


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.sampled(128)
@pytest.mark.parametrize("name", [n for n in NAMES if supported(n, torch.float64)])
def test_device(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "device", name, torch.float64)
    _hold(on_device.device(name, torch.float64, 1))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", [n for n in NAMES if supported(n, torch.float64)])
def test_open_sizes(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "dynamic", name, torch.float64)
    _hold(on_device.dynamic(name, torch.float64, 1))


_PLACED: dict[str, Any] = {
    "clone": {},
    "clone, in a format": {"memory_format": torch.channels_last},
    "_to_copy": {"dtype": torch.float64},
    "_to_copy, in a format": {"memory_format": torch.channels_last},
    "_to_copy, to a device": {"device": "jax"},
}


@pytest.mark.parametrize("name", _PLACED)
def test_gradients_of_direct_calls_that_say_where_a_result_is_stored(name: str) -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4).to("jax").requires_grad_()
    result = getattr(torch.ops.jaten, name.partition(",")[0])(x, **_PLACED[name])
    result.square().sum().backward()
    assert isinstance(x.grad, jaten_ops.Tensor) and x.grad.dtype == x.dtype
    assert torch.equal(x.grad.cpu(), 2 * x.detach().cpu())
