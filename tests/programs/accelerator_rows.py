"""A process whose JAX has an accelerator beside the CPU: a second client of the CPU, whose arrays the first refuses.

It answers requests for rows of `tests/programs/accelerator.py`. Run by `tests/test_accelerator.py`, since JAX
must know its platforms when it starts.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import xla_bridge
from jaxlib import xla_client

from jaten_ops.arrays import bridge

from ..harness.asked_process import serve
from . import accelerator

_NAME = "accelerator"


def _set_up() -> None:
    """Makes the second client the default, and tells jaten that its memory is not the host's."""
    xla_bridge.register_backend_factory(
        _NAME, lambda: xla_client.make_cpu_client(asynchronous=True, num_devices=1), priority=400, fail_quietly=False
    )
    jax.config.update("jax_platforms", f"{_NAME},cpu")
    (device,) = jax.local_devices()
    assert device is not jax.local_devices(backend="cpu")[0]

    def is_on_host(other: Any) -> bool:
        return other.client is not device.client

    bridge.is_on_host = is_on_host


if __name__ == "__main__":
    _set_up()
    serve(accelerator.differences)
