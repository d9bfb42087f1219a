"""Inference in pyro: the most probable parameters by SVI, and the densities of a trace."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta

from ..run import Run


def model(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    """A robust regression."""
    weight = pyro.sample("weight", dist.Normal(x.new_zeros(3), x.new_ones(3)).to_event(1))
    scale = pyro.sample("scale", dist.HalfCauchy(x.new_ones(())))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.StudentT(x.new_tensor(3.0), x @ weight, scale), obs=y)


def main(run: Run) -> None:
    pyro.clear_param_store()
    x = torch.randn(32, 3)
    y = (x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(32)).to(run.device)
    x = x.to(run.device)
    start = pyro.infer.autoguide.init_to_value(
        values={"weight": torch.zeros(3, device=run.device), "scale": torch.ones((), device=run.device)}
    )
    guide = AutoDelta(model, init_loc_fn=start)
    loss_of = Trace_ELBO().differentiable_loss
    guide(x, y)  # makes its parameters
    optimizer = torch.optim.Adam(guide.parameters(), lr=0.1)
    compiled = run.compile(lambda: loss_of(model, guide, x, y))
    run.start()
    for _ in range(6):
        loss = compiled()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.05}), loss=Trace_ELBO())
    run.record(*(svi.step(x, y) for _ in range(3)), *guide.median()["weight"])
    trace = pyro.poutine.trace(pyro.condition(model, guide.median())).get_trace(x, y)
    run.record(trace.log_prob_sum())
