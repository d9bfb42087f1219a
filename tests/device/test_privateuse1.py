"""The device `jax` where JAX has several: a process with two of its CPU's, in which all is on the second."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ..harness import virtual_devices
from ..programs import second_device

NAMES = [*second_device.PROGRAMS, *(f"compiled {name}" for name in second_device.COMPILED), "a step"]


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
