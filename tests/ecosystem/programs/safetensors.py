"""A checkpoint of safetensors, read on the device and written from it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model

from ..run import Run


def main(run: Run) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to(run.device)
    x = torch.randn(3, 8).to(run.device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        run.start()
        save_model(model.to(run.device), str(file))
        load_model(other, str(file))
        run.record(*(t.sum() for t in other(x)))
        loaded = {name: tensor.to(run.device) for name, tensor in load_file(file).items()}
        assert {t.device.type for t in loaded.values()} == {run.device}
        run.record(*(t.double().square().sum().item() for t in loaded.values()))
        save_file({"half": x.bfloat16(), "whole": torch.arange(6, device=run.device)}, file)
        with safe_open(file, "pt") as opened:
            half, whole = opened.get_tensor("half").to(run.device), opened.get_slice("whole")[2:4].to(run.device)
            run.record(half.float().sum(), whole.sum())
