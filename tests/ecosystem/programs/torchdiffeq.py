"""A neural differential equation of torchdiffeq, with its adjoint: steps of a fixed size, and adaptive ones."""

from __future__ import annotations

import torch
from torchdiffeq import odeint, odeint_adjoint

from ..run import Run


class Dynamics(torch.nn.Module):
    """The derivative of the state by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layers(y**3)


def main(run: Run) -> None:
    start = torch.tensor([[2.0, 0.0]]).to(run.device)
    times = torch.linspace(0.0, 1.0, 6).to(run.device)
    matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]]).to(run.device)
    with torch.no_grad():
        truth = odeint(lambda t, y: y**3 @ matrix, start, times)
    dynamics = Dynamics().to(run.device)
    optimizer = torch.optim.RMSprop(dynamics.parameters(), lr=1e-2)
    compiled = run.compile(dynamics)
    run.start()
    for method in ("rk4", "rk4", "rk4", "dopri5"):
        found = odeint_adjoint(compiled, start, times, method=method, adjoint_params=tuple(dynamics.parameters()))
        loss = (found - truth).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.record(loss)
