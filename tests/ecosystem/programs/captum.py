"""Attributions of captum for a small convolutional classifier."""

from __future__ import annotations

import torch
from captum.attr import DeepLift, IntegratedGradients, LayerGradCam, Occlusion, Saliency

from ..run import Run


class Network(torch.nn.Module):
    """A convolution, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.relu = torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU()
        self.pool, self.last = torch.nn.AvgPool2d(2), torch.nn.Linear(4 * 9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.pool(self.relu(self.convolution(x))).flatten(1))


def main(run: Run) -> None:
    model = Network().eval().to(run.device)
    compiled = run.compile(model)
    pictures = torch.randn(2, 1, 8, 8).to(run.device)
    run.start()
    for target in range(3):
        found, error = IntegratedGradients(compiled).attribute(
            pictures, target=target, n_steps=10, return_convergence_delta=True
        )
        run.record(found.abs().sum(), *error)
    run.record(Saliency(compiled).attribute(pictures, target=1).sum())
    run.record(Occlusion(compiled).attribute(pictures, target=1, sliding_window_shapes=(1, 4, 4), strides=4).sum())
    run.record(DeepLift(model).attribute(pictures, target=2).abs().sum())
    run.record(LayerGradCam(model, model.convolution).attribute(pictures, target=0).sum())
