"""Bayesian optimization by BoTorch: a Gaussian process is fitted, and the largest expected gain is looked for."""

from __future__ import annotations

import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from ..run import Run


def main(run: Run) -> None:
    x = torch.rand(16, 2, dtype=torch.float64)
    y = -((x - 0.3) ** 2).sum(1, keepdim=True) + 0.05 * torch.randn(16, 1, dtype=torch.float64)
    x, y = x.to(run.device), y.to(run.device)
    model = SingleTaskGP(x, y)
    likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    run.start()
    model.train()
    for _ in range(4):
        optimizer.zero_grad()
        loss = -likelihood(model(*model.train_inputs), model.train_targets)
        loss.backward()
        optimizer.step()
        run.record(loss)
    model.eval()
    gain = run.compile(LogExpectedImprovement(model, best_f=y.max()))
    point = torch.full((1, 1, 2), 0.5, dtype=torch.float64, device=run.device, requires_grad=True)
    search = torch.optim.Adam([point], lr=0.05)
    for _ in range(4):
        search.zero_grad()
        value = gain(point).sum()
        (-value).backward()
        search.step()
        run.record(value)
    with torch.no_grad():
        run.record(*point.flatten(), UpperConfidenceBound(model, beta=0.1)(point).sum())
