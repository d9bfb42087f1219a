"""Several processes that run one program over the devices of all of them, by `jax.distributed`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax
import numpy as np
import torch
from jax.experimental import multihost_utils

from ..device import streams
from ..errors import UnsupportedInputError


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
) -> None:
    """Connects this process with the others: `make_mesh` is then over the devices of all.

    Call it before anything is computed on the device `jax`, in each process, and then run the same program in each:
    `jax:0` is this process's first device, tensors over the mesh are one for all, and seeds are those of process 0.
    Arguments that are left out come from the environment that `torchrun` sets, else from the cluster, as
    `jax.distributed.initialize` finds them. On CPUs the processes exchange values by gloo.

    Args:
        coordinator_address: host and port of process 0, as "10.0.0.1:1234".
        num_processes: how many there are.
        process_id: this one's number, from 0 on.
        local_device_ids: the devices that this process uses; None for all that it sees.

    Raises:
        UnsupportedInputError: JAX has started already.

    Example:
        >>> from jaten_ops import distributed
        >>> distributed.initialize("localhost:29501", num_processes=1, process_id=0)  # doctest: +SKIP
    """
    if streams.has_started():
        raise UnsupportedInputError(
            "initialize", "a process in which JAX has started", "a call before the first tensor on the device jax"
        )
    env = os.environ
    if coordinator_address is None and "MASTER_ADDR" in env and "MASTER_PORT" in env:
        # torch's own store has the port itself
        coordinator_address = f"{env['MASTER_ADDR']}:{int(env['MASTER_PORT']) + 1}"
    if num_processes is None and "WORLD_SIZE" in env:
        num_processes = int(env["WORLD_SIZE"])
    if process_id is None and "RANK" in env:
        process_id = int(env["RANK"])
    jax.distributed.initialize(coordinator_address, num_processes, process_id, local_device_ids)
    seed = np.array([torch.initial_seed() >> 32, torch.initial_seed() & 0xFFFFFFFF], np.uint32)
    high, low = (int(word) for word in multihost_utils.broadcast_one_to_all(seed))
    torch.manual_seed((high << 32) | low)
