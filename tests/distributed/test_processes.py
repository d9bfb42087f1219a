"""Two processes by `jax.distributed`, four devices each, train as one process on one device does."""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch.distributed.checkpoint as checkpoint

from jaten_ops import distributed
from jaten_ops.errors import UnsupportedInputError
from tests.harness import virtual_devices
from tests.programs import mesh_checkpoints
from tests.programs.mesh_processes import ASKED, CHECKPOINTS, WAYS

ROOT = Path(__file__).resolve().parents[2]


def _free_port() -> int:
    """A port that is free, and so is the next one."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of checkpoints, with one of this process."""
    path = tmp_path_factory.mktemp("checkpoints")
    state = mesh_checkpoints.trained(copy.deepcopy(mesh_checkpoints.MODEL), 1.0)
    checkpoint.save(state, checkpoint_id=path / "of one process")
    return path


ROWS = [way if way == "step" else pytest.param(way, marks=pytest.mark.exhaustive) for way in WAYS]


@pytest.fixture(scope="module")
def found(folder: Path, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The findings of each process, which train in the ways that are tested, or at least in the last one."""
    tests = [item.name for item in request.session.items]
    asked = [way for way in WAYS[:-1] if any(f"one_device[{way}]" in name for name in tests)]
    asked += [CHECKPOINTS] * any("saved" in name or "saving" in name for name in tests)
    environment = os.environ | virtual_devices.environment(4) | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
        "CHECKPOINTS": str(folder), ASKED: " ".join([*asked, WAYS[-1]]),
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.programs.mesh_processes"],
            env=environment | {"RANK": str(rank)}, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize("way", ROWS)
def test_losses_are_those_of_one_device(found: list[dict[str, Any]], way: str) -> None:
    for one in found:
        torch.testing.assert_close(one[way], one["plain"], rtol=1e-5, atol=1e-6)


def test_processes_see_one_program(found: list[dict[str, Any]]) -> None:
    one, other = found
    assert one == other
    assert one["devices"] == [8, 4] and one["seed"] == 1000 and one["home"] == "jax:0"


def test_each_device_has_a_part(found: list[dict[str, Any]]) -> None:
    assert found[0]["part"] == [8, 16]
    assert found[0]["sums"][0] == pytest.approx(found[0]["sums"][1], abs=1e-5)  # of 1,024 weights


def test_dropout_differs_over_the_batch(found: list[dict[str, Any]]) -> None:
    rows = found[0]["dropout"]
    assert len(rows) == 8 and len({tuple(row) for row in rows}) > 4


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_one_process_loads_what_two_saved(found: list[dict[str, Any]], folder: Path) -> None:
    expected = mesh_checkpoints.trained(copy.deepcopy(mesh_checkpoints.MODEL), 1.0)
    for model in (copy.deepcopy(mesh_checkpoints.MODEL), copy.deepcopy(mesh_checkpoints.MODEL).to("jax")):
        state = mesh_checkpoints.trained(model, 0.0)
        checkpoint.load(state, checkpoint_id=folder / "of two processes")
        mesh_checkpoints.assert_same(state, expected)


@pytest.mark.exhaustive
def test_saving_alone_is_refused(found: list[dict[str, Any]]) -> None:
    alone, without_group = found[0]["refused"]
    assert "full_tensor().cpu(), which all processes call" in alone
    assert 'init_process_group("gloo")' in without_group


def test_a_process_in_which_jax_runs_is_refused() -> None:
    jax.devices()
    with pytest.raises(UnsupportedInputError, match="before the first tensor"):
        distributed.initialize("127.0.0.1:1", 1, 0)
