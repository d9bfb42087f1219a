"""The programs for two processes of `torch.distributed`; as a script, one of them, for `rank_processes`."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist

import jaten_ops  # noqa: F401  # the device jax

from ..harness.asked_process import serve
from . import rank_collectives, rank_modules, rank_tensors
from .rank_ways import PLAIN, WAYS, Way, whole


def _of_the_page(way: Way) -> Any:
    """The program of "One process a device" in docs/guides/many_devices.md."""
    section = _PAGE.read_text(encoding="utf-8").partition("\n## One process a device\n")[2]
    code = section.partition("```python skip\n")[2].partition("```")[0]
    lines = [line for line in code.splitlines() if "_process_group()" not in line]  # there is one already
    code = "\n".join(lines).replace('device = "jax"', f'device = "{way.device}"')
    if not way.is_compiled:
        code = code.replace('torch.compile(model, backend="jaten")', "model")
    scope: dict[str, Any] = {}
    exec(compile(code, str(_PAGE), "exec"), scope)
    return scope["loss"], scope["model"]


_PAGE = Path(__file__).parents[2] / "docs" / "guides" / "many_devices.md"
PROGRAMS: dict[str, Callable[[Way], Any]] = {
    "the page": _of_the_page,
    **rank_collectives.PROGRAMS,
    **rank_tensors.PROGRAMS,
    **rank_modules.PROGRAMS,
}
TOLERANCES = {"FSDP2 in bfloat16": 2e-2, "DDP with a float16 hook": 2e-3}
"""Tolerances of programs whose values have fewer bits."""
_expected: dict[str, Any] = {}


def run(program: str, way: str) -> None:
    """Runs a program in a way, and compares its findings with plain torch's in the same two processes.

    Raises:
        AssertionError: they differ.
    """
    torch._dynamo.reset()
    if program not in _expected:
        _expected[program] = whole(PROGRAMS[program](PLAIN))
    tolerance = TOLERANCES.get(program, 1e-4)  # float32: sums have another order, and steps of training multiply that
    found = whole(PROGRAMS[program](WAYS[way]))
    torch.testing.assert_close(found, _expected[program], rtol=tolerance, atol=tolerance / 10)


if __name__ == "__main__":
    dist.init_process_group(timeout=datetime.timedelta(seconds=60))  # without a backend: gloo serves both devices
    assert dist.get_default_backend_for_device("jax") == "gloo"
    serve(run)
    dist.destroy_process_group()
    os._exit(0)  # without waiting for threads of a process group that has failed
