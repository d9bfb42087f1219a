"""Programs of JAX's CPU in the thread that calls them, where the process has one core.

JAX hands all but the smallest programs to another thread, so that Python goes on meanwhile. On one core Python cannot,
and two changes of threads take longer than calling a small program.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ..xla import cpu_features
from .ledger import Patch


def in_calling_thread(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make_cpu_client`, whose client computes in the thread that calls it if that is the only one that can run."""

    @functools.wraps(make)
    def make_cpu_client(asynchronous: bool = True, *args: Any, **options: Any) -> Any:
        return make(asynchronous and not _is_one_of_one(**options), *args, **options)

    return make_cpu_client


def _is_one_of_one(num_nodes: int = 1, num_devices: int | None = None, **_others: Any) -> bool:
    """True if the client has one device on one core: programs over several devices wait for each other."""
    several = (num_devices or 1) > 1 or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return num_nodes == 1 and not several and cpu_features.cores() == 1


ROWS = [
    Patch(
        "jaxlib.xla_client:make_cpu_client", in_calling_thread,
        "in a process with one core, a small operator would take longer, for changes of threads",
        "hooks/test_cpu_dispatch",
        takes=(
            "asynchronous distributed_client node_id num_nodes collectives num_devices"
            " get_local_topology_timeout_minutes get_global_topology_timeout_minutes transfer_server_factory"
        ),
        for_device=False,
        loss="in a process with one core, small operators on the device jax take longer",
    ),
]  # fmt: skip
