"""Processes of `torch.distributed` on this machine, for tests: what each of them finds."""

from __future__ import annotations

import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Outcome = Callable[[int], dict[str, Callable[[], Any]]]
"""From a rank, in its process, the cases to run there by name."""

WORLD = 2


def found_by_processes(cases_of: Outcome, backend: str | None) -> list[dict[str, Any]]:
    """For each process, by rank, the result of each case; the traceback, as a text, of a case that raises.

    Args:
        cases_of: a function of a module, which processes import.
        backend: that of the process group; None leaves it to torch.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, args=(port, folder, cases_of, backend), nprocs=WORLD)
        return [torch.load(Path(folder) / str(rank)) for rank in range(WORLD)]


def _process(rank: int, port: int, folder: str, cases_of: Outcome, backend: str | None) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group(backend, rank=rank, world_size=WORLD)
    found: dict[str, Any] = {}
    for name, run in cases_of(rank).items():
        try:
            found[name] = run()
        except Exception:
            found[name] = traceback.format_exc()
    dist.destroy_process_group()
    torch.save(found, Path(folder) / str(rank))
