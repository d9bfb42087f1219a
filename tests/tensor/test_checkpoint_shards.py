"""Partitioned tensors in torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as checkpoint

from ..harness import mesh_process
from ..programs.mesh_checkpoints import PLACES


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_saved_is_loaded(place: str) -> None:
    mesh_process.found("checkpoints", place)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_tensor_of_one_device(tmp_path: Path) -> None:
    checkpoint.save({"x": torch.arange(6.0, device="jax").reshape(2, 3)}, checkpoint_id=tmp_path)
    loaded = torch.zeros(2, 3, device="jax")
    checkpoint.load({"x": loaded}, checkpoint_id=tmp_path)
    assert loaded.tolist() == [[0, 1, 2], [3, 4, 5]]
