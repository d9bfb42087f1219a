"""The device `jax` where JAX has several: a process with two of its CPU's, in which all is on the second."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import jaten_ops
from jaten_ops.device import privateuse1

from ..harness import virtual_devices
from ..programs import second_device

NAMES = [*second_device.PROGRAMS, *(f"compiled {name}" for name in second_device.COMPILED), "a step", "a moved step"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    command = [sys.executable, "-P", second_device.__file__]
    environment = os.environ | virtual_devices.environment(2)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_made_on_the_second_device_stays_there(name: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes[name] == []


# what JATEN_DEVICE is, the GPUs that torch has, and whether the slot is taken
WANTED = {
    "no GPU": (None, 0, True),
    "a GPU": (None, 1, False),
    "a GPU, and asked for": ("1", 1, True),
    "no GPU, and refused": ("0", 0, False),
    "an empty variable": ("", 1, False),
}


@pytest.mark.parametrize("case", WANTED)
def test_the_slot_is_left_alone_where_torch_has_a_gpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told, gpus, wanted = WANTED[case]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if told is None:
        monkeypatch.delenv("JATEN_DEVICE", raising=False)
    else:
        monkeypatch.setenv("JATEN_DEVICE", told)
    assert privateuse1._is_wanted() is wanted


@pytest.mark.parametrize(("owner", "words"), [("other", "taken by 'other'"), (None, "JATEN_DEVICE=1")])
def test_a_use_without_the_slot_says_what_to_do(owner: str | None, words: str) -> None:
    with pytest.raises(jaten_ops.DeviceSlotError, match=words):
        raise jaten_ops.DeviceSlotError(owner)
