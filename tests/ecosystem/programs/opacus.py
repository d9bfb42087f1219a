"""Private training by opacus, with gradients of each example; without noise, so that the curves can be compared."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from ..run import Run


class Network(torch.nn.Module):
    """A convolution with group norm, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(1, 8, 3), torch.nn.GroupNorm(2, 8)
        self.last = torch.nn.Linear(8 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.convolution(x)).relu().flatten(1))


def main(run: Run) -> None:
    model = Network().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = TensorDataset(torch.randn(24, 1, 8, 8), torch.arange(24) % 3)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=8), noise_multiplier=0.0,
        max_grad_norm=1.0, poisson_sampling=False,
    )  # fmt: skip
    compiled = run.compile(model)
    run.start()
    for _ in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(compiled(x.to(run.device)), y.to(run.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.record(loss)
