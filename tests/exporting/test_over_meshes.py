"""Exported programs over a mesh of devices: here, and loaded in a process without torch."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jaten_ops
from jaten_ops.exporting import artifact

from ..harness import mesh_process, virtual_devices
from ..programs import loads_exported

TWO = ("tensor parallel", "fully sharded, a step")
OTHERS = ("fully sharded", "a parameter", "tensor parallel, a step", "a parameter, a step")


def _saved(root: Path, names: Sequence[str]) -> dict[str, Any]:
    """Programs in a folder; the results that are expected of each."""
    return {name: mesh_process.found("exported", name, str(root / name)) for name in names}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("exported")
    return root, _saved(root, TWO)


def _loaded(root: Path, devices: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **virtual_devices.environment(devices)}
    command = [sys.executable, "-P", loads_exported.__file__, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.exhaustive
def test_a_process_without_torch_gives_the_same(saved: tuple[Path, dict[str, Any]]) -> None:
    _load_and_compare(*saved)


@pytest.mark.exhaustive
def test_all_in_a_process_without_torch(tmp_path: Path) -> None:
    _load_and_compare(tmp_path, _saved(tmp_path, OTHERS))


def _load_and_compare(root: Path, expected: dict[str, Any]) -> None:
    done = _loaded(root, mesh_process.DEVICES)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, results in expected.items():
        found = pickle.loads((root / name / "results.pickle").read_bytes())
        for one, other in zip(found, results, strict=True):
            np.testing.assert_allclose(one, other, 2e-5, 2e-5, err_msg=name)


@pytest.mark.exhaustive
def test_the_signature_has_the_mesh(saved: tuple[Path, dict[str, Any]]) -> None:
    signature = json.loads((saved[0] / "tensor parallel" / "signature.json").read_text())
    assert signature["mesh"] == {"data": 2, "model": 4}
    assert signature["partitions"]["0.weight"] == [["model"]] and signature["partitions"]["2.weight"] == []
    assert signature["arrays"][0]["partition"] == [["data"]]
    step = json.loads((saved[0] / "fully sharded, a step" / "signature.json").read_text())
    assert step["partitions"]["model.0.weight"] == step["partitions"]["optimizer.state.0.exp_avg"] == [["data"]]


def test_too_few_devices_are_named(saved: tuple[Path, dict[str, Any]]) -> None:
    done = _loaded(saved[0], 4)
    assert "RuntimeError: the program is for 8 devices" in done.stderr and "JAX has 4 here" in done.stderr


@pytest.mark.parametrize(
    ("what", "text"), [("open sizes", "got dynamic_shapes, expected known sizes"), ("two meshes", "one mesh")]
)
def test_what_is_refused(what: str, text: str) -> None:
    assert text in mesh_process.found("not exported", what)


def test_a_tied_weight_is_there_once() -> None:
    *biases, weight = sorted(mesh_process.found("exported, tied"), key=lambda name: name.endswith("weight"))
    assert set(biases) == {"first.bias", "last.bias"} and weight in ("first.weight", "last.weight")


def test_large_weights_are_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_BYTES_A_FILE", 300)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(2, 8)
    exported = jaten_ops.export(model, (x,))
    exported.save(tmp_path / "program")
    names = sorted(path.name for path in (tmp_path / "program").glob("*.safetensors"))
    assert names == [f"weights-0000{i}-of-00002.safetensors" for i in (1, 2)]
    program = jaten_ops.exporting.loader.load(tmp_path / "program")
    np.testing.assert_allclose(program(x.numpy()), model(x).detach().numpy(), 1e-5)
