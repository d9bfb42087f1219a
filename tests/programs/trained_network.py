"""A network with buffers and a frozen parameter, and its training by plain torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    module[3].bias.requires_grad_(False)
    return module


def torch_training(steps: int = 4) -> tuple[list[float], nn.Module]:
    """The losses of some steps of SGD with momentum, and the trained network."""
    module, losses = network(), []
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1, momentum=0.9)
    for _ in range(steps):
        loss = (module(torch.from_numpy(X)) - torch.from_numpy(Y)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, module
