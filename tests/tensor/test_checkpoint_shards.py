"""Partitioned tensors in torch.distributed.checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as checkpoint

from tests.programs.mesh_checkpoints import PLACES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, bool]]:
    """The findings of a process with eight devices."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.mesh_checkpoints"], cwd=ROOT, text=True, capture_output=True,
        check=False, env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]  # JSON has no types


@pytest.mark.parametrize("place", PLACES)
def test_what_is_saved_is_loaded(found: dict[str, dict[str, bool]], place: str) -> None:
    assert found[place] == {"values": True, "places": True}


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_tensor_of_one_device(tmp_path: Path) -> None:
    checkpoint.save({"x": torch.arange(6.0, device="jax").reshape(2, 3)}, checkpoint_id=tmp_path)
    loaded = torch.zeros(2, 3, device="jax")
    checkpoint.load({"x": loaded}, checkpoint_id=tmp_path)
    assert loaded.tolist() == [[0, 1, 2], [3, 4, 5]]
