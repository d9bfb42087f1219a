"""Two processes of `torch.distributed`, which run rows of a table for tests together."""

from __future__ import annotations

import functools
import socket
from typing import Any

from . import virtual_devices
from .asked_process import AskedProcess, Died

WORLD = 2
_SECONDS = 180.0
_AFTER_ERROR = 10.0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@functools.cache
def _processes() -> list[AskedProcess]:
    shared = virtual_devices.environment(1) | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(WORLD),
    }
    return [
        AskedProcess("tests.programs.rank_rows", shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(WORLD)
    ]


def found(*row: str) -> list[Any]:
    """The result of a row of `tests/programs/rank_rows.py` in each process, by rank.

    Raises:
        AssertionError: the row raised, or a process is gone or hangs; the message has what each says.
    """
    processes = _processes()
    for process in processes:
        process.send(list(row))
    answers: list[Any] = []
    errors: list[str] = []
    for rank, process in enumerate(processes):
        try:
            answers.append(process.answer(_AFTER_ERROR if errors else _SECONDS))
        except Died as died:
            answers.append({"error": f"no answer: {died}"})
        if "error" in answers[-1]:
            errors.append(f"rank {rank}: {answers[-1]['error']}")
    if errors:
        _processes.cache_clear()  # one may have stopped where the other goes on: the next row gets new ones
        for process in processes:
            process.end()
    assert not errors, "\n".join(errors)
    return [answer["result"] for answer in answers]
