"""In which thread JAX's CPU computes: that of the caller, where a process has one core and one device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jaten_ops.hooks import cpu_dispatch
from jaten_ops.xla import cpu_features

# environment variables, how many cores the process may use, the setting of JAX; whether another thread computes
PROCESSES: dict[str, tuple[dict[str, str], int, bool, bool]] = {
    "one core": ({}, 1, True, False),
    "two cores": ({}, 2, True, True),
    "two cores, and JAX's setting": ({}, 2, False, False),
    "one core, several devices": ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, 1, True, True),
}

PROGRAM = """
import functools, os, sys
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]))
from jaxlib import xla_client
made, plain = [], xla_client.make_cpu_client

@functools.wraps(plain)
def noting(asynchronous=True, **options):
    made.append(asynchronous)
    return plain(asynchronous, **options)

xla_client.make_cpu_client = noting
import jax, torch, jaten_ops
if sys.argv[2] == "False":
    jax.config.update("jax_cpu_enable_async_dispatch", False)
x = torch.ones(64, 64, device="jax")
assert (x + x).sum().item() == 2 * 64 * 64
assert jax.jit(lambda a: a @ a)(jaten_ops.to_jax(x))[0, 0] == 64
print(made[0])
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="the test needs two cores"
)
@pytest.mark.parametrize("name", PROCESSES)
def test_the_thread_that_computes(name: str) -> None:
    variables, cores, setting, in_another = PROCESSES[name]
    command = [sys.executable, "-P", "-c", PROGRAM, str(cores), str(setting)]
    found = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(in_another)]


@pytest.mark.parametrize("options", [{"num_devices": 2}, {"num_nodes": 2}], ids=["devices", "processes"])
def test_clients_of_several_devices_are_as_jax_makes_them(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(cpu_features, "cores", lambda: 1)
    make = cpu_dispatch.in_calling_thread(lambda asynchronous, **given: asynchronous)
    assert make(True, **options)
    assert not make(True)
