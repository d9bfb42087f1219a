"""An exact Gaussian process of gpytorch: its hyperparameters are fitted, and it predicts."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch

from ..run import Run


class Process(gpytorch.models.ExactGP):
    """A constant mean and a scaled RBF kernel."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def main(run: Run) -> None:
    x = torch.linspace(0, 1, 40)
    y = torch.sin(x * 6.28) + torch.randn(40) * 0.2
    x, y = x.to(run.device), y.to(run.device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(x, y, likelihood).to(run.device)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    compiled = run.compile(lambda: -mll(model(x), y))
    run.start()
    for _ in range(6):
        optimizer.zero_grad()
        loss = compiled()
        loss.backward()
        optimizer.step()
        run.record(loss)
    model.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        found = likelihood(model(torch.linspace(0, 1, 7).to(run.device)))
        run.record(*found.mean, *found.stddev)
