"""The environment of a process that has several virtual CPU devices."""

from __future__ import annotations

import os

import jaxlib.version

# Eight devices on two cores wait for each other; XLA ends the process when one has waited for 40 seconds.
_PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
# What such tests are about, how a program is placed and partitioned, is settled before machine code is made of it;
# with optimized code they take twice as long.
_PLAIN_CODE = "--xla_backend_optimization_level=0"
# jaxlib up to 0.11.1 has other emitters of loops, which take less time; a flag that is not known ends the process
if jaxlib.version.__version_info__ < (0, 11, 2):
    _PLAIN_CODE += " --xla_cpu_use_fusion_emitters=false"


def environment(devices: int) -> dict[str, str]:
    """The variables that give a new process so many devices."""
    count = f"--xla_force_host_platform_device_count={devices}"
    flags = [os.environ.get("XLA_FLAGS", ""), count, _PATIENT, _PLAIN_CODE]
    return {"XLA_FLAGS": " ".join(flags).strip()}
