"""A training loop of accelerate: `prepare`, accumulated gradients, clipping, and a saved state."""

from __future__ import annotations

import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from ..run import Run


class Network(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main(run: Run) -> None:
    os.environ |= {"ACCELERATE_TORCH_DEVICE": "jax"} if run.device == "jax" else {}
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=run.device == "cpu")
    model = Network()
    run.compile_in_place(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    x = torch.randn(64, 16)
    loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=8)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    run.start()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        run.record(loss)
    assert loss.device.type == run.device
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        accelerator.load_state(folder)
    run.record(accelerator.gather_for_metrics(model(inputs)).sum())
