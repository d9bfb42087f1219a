"""A Learner of fastai: one cycle, with metrics and a saved model."""

from __future__ import annotations

import tempfile

import torch
from fastai.callback.core import Callback
from fastai.callback.schedule import Learner
from fastai.data.core import DataLoaders
from fastai.metrics import accuracy
from torch.utils.data import TensorDataset

from ..run import Run


class Network(torch.nn.Module):
    """Two layers with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Losses(Callback):
    """Hands the losses to the run."""

    def __init__(self, run: Run) -> None:
        self.of = run

    def after_batch(self) -> None:
        if self.training:
            self.of.record(self.loss)


def main(run: Run) -> None:
    x = torch.randn(64, 8)
    data = TensorDataset(x, x[:, :3].argmax(1))
    loaders = DataLoaders.from_dsets(data, data, bs=16, shuffle=False, device=torch.device(run.device))
    model = Network()
    run.compile_in_place(model)
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(
            loaders, model, loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy, cbs=Losses(run), path=folder
        )
        with learner.no_bar(), learner.no_logging():
            run.start()
            learner.fit_one_cycle(2, 1e-2)
            assert next(model.parameters()).device.type == run.device
            run.record(*learner.validate())
            learner.save("model")
            learner.load("model")
            predictions, _ = learner.get_preds()
    run.record(*predictions[:2].flatten())
