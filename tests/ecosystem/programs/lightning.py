"""Lightning's Trainer: a compiled module, or the accelerator "jax"; a checkpoint is saved and trained on."""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from ..run import Run


class Digits(L.LightningModule):
    """A classifier with batch norm that logs its loss."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.network = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("val_loss", torch.nn.functional.cross_entropy(self(x), y))

    def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
        self.run.record(outputs["loss"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def main(run: Run) -> None:
    if run.way == "device":
        importlib.import_module("jaten_ops.lightning")
    accelerator = {"cpu": "cpu", "jax": "jax"}[run.device]
    x = torch.randn(64, 16)
    data = TensorDataset(x, x[:, :4].argmax(1))
    module = Digits(run)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"accelerator": accelerator, "devices": 1, "default_root_dir": folder, "logger": False}
        settings |= {"enable_progress_bar": False, "enable_model_summary": False, "gradient_clip_val": 1.0}
        run.compile_in_place(module)
        trainer = L.Trainer(max_epochs=2, **settings)
        run.start()
        trainer.fit(module, DataLoader(data, batch_size=16), DataLoader(data, batch_size=32))
        run.record(trainer.callback_metrics["val_loss"])
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        again = L.Trainer(max_epochs=3, **settings)
        again.fit(Digits(run), DataLoader(data, batch_size=16), ckpt_path=f"{folder}/last.ckpt")
        run.record(again.callback_metrics["train_loss"])
