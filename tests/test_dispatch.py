"""PyTorch's samples on the device `jax`, in each form that a user can call."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from . import exceptions, on_device
from .replay import supported
from .test_ops import NAMES, _every, _hold


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", _every(8, [n for n in NAMES if supported(n, torch.float64)]))
def test_device(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "device", name, torch.float64)
    _hold(on_device.device(name, torch.float64, 1))
