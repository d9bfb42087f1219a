"""Training steps that keep what they compute: in attributes, buffers, lists, variables and averages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .steps import SCENARIOS, Net, Scenario, Wrap, batches, make, scenario, state_of, training


class Keeps(nn.Module):
    """Stores what it computes in ways that people do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = Net(), how
        self.register_buffer("mean", torch.zeros(3))
        self.cache: Any = None
        self.seen: list[Any] = []
        self.by_name: dict[str, Any] = {}
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.net(x)
        if self.how == "attribute":
            self.cache = y.detach()
        elif self.how == "tuple":
            h, c = (torch.zeros_like(y), 0.0) if self.cache is None else self.cache
            self.cache = (h * 0.5 + y.detach(), c + 1.0 + y.detach().sum())
            y = y + self.cache[0]
        elif self.how == "list of two":
            self.seen = [y.detach()[1:], y.detach() * 2]
        elif self.how == "graph":
            self.cache = y
        elif self.how == "view":
            self.cache = y[0]
        elif self.how == "buffer replaced":
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        elif self.how == "buffer written":
            self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        elif self.how == "list":
            self.seen.append(y.detach().sum())
        elif self.how == "dict":
            self.by_name["y"] = y.detach()
        elif self.how == "read back":
            y = y if self.cache is None else y + 0.1 * self.cache
            self.cache = y.detach()
        elif self.how == "counter":
            self.calls += 1
            y = y * self.calls
        return y


def _keeps(how: str) -> Scenario:
    def keeps(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device, lambda: Keeps(how))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        run, kept = wrap(training(model, optimizer), model, optimizer), []
        for x, y in batches(device):
            loss = run(x, y)
            kept.append(model.cache)
            yield loss, state_of(model, optimizer), list(kept), list(model.seen), dict(model.by_name)

    return keeps


_HOWS = "tuple, list of two, attribute, graph, view, buffer replaced, buffer written, list, dict, read back, counter"
for _how in _HOWS.split(", "):
    SCENARIOS[f"keeps: {_how}"] = _keeps(_how)


@scenario
def closure_list_and_nonlocal(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    history: list[torch.Tensor] = []
    last: Any = None
    recent: deque[torch.Tensor] = deque(maxlen=2)
    count = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal last, count
        loss = model(x).square().mean()
        history.append(loss.detach())
        recent.append(loss.detach() * 2)
        last = loss.detach() + count
        count += 1
        return loss

    run = wrap(step, model)
    for x, _ in batches(device):
        yield run(x), list(history), list(recent), last, count


@scenario
def arrays_of_numpy(device: str, wrap: Wrap) -> Iterator[Any]:
    """One that the loop changes in place, by numbers and as a tensor, and one that the step changes."""
    model = make(device)
    factor, seen = np.ones(2), SimpleNamespace(count=np.zeros(1, np.int64))

    def step(x: torch.Tensor) -> torch.Tensor:
        seen.count[0] += 1
        return (model(x).square() * torch.as_tensor(factor, device=x.device)[0]).mean() * float(factor[1])

    run = wrap(step, model)
    for i, (x, _) in enumerate(batches(device)):
        factor[i % 2] = 1 + i / 2
        yield run(x), seen.count.tolist()


@scenario
def truncated_backpropagation(device: str, wrap: Wrap) -> Iterator[Any]:
    """A state that goes from call to call, and is detached by the step."""
    model = make(device, lambda: nn.GRU(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        found, state = model(x, state.detach())
        loss = found.square().mean()
        loss.backward()
        optimizer.step()
        return loss, state

    run, state = wrap(step), torch.zeros(1, 2, 3, dtype=torch.double, device=device)
    for number in range(4):
        x = torch.linspace(-1, 1 + number, 40, dtype=torch.double).reshape(5, 2, 4).to(device)
        loss, state = run(x, state)
        yield loss, state, state_of(model, optimizer)


@scenario
def modes_in_steps(device: str, wrap: Wrap) -> Iterator[Any]:
    """Each of two steps puts the model into its own mode."""
    model = nn.Sequential(make(device), nn.BatchNorm1d(3).double().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train = training(model, optimizer)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> Any:
        model.train()
        return train(x, y)

    def evaluate(x: torch.Tensor) -> torch.Tensor:
        model.eval()
        model[0].train()
        with torch.no_grad():
            return model(x).sum()

    first, second = wrap(train_step), wrap(evaluate)
    for x, y in batches(device):
        yield first(x, y), [m.training for m in model.modules()], state_of(model, optimizer)
        yield second(x), [m.training for m in model.modules()]


@scenario
def ema_of_a_dict(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    replaced = {k: v.detach().clone() for k, v in model.named_parameters()}
    written = {k: v.detach().clone() for k, v in model.named_parameters()}

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for k, v in model.named_parameters():
                replaced[k] = 0.9 * replaced[k] + 0.1 * v
                written[k].mul_(0.9).add_(v, alpha=0.1)
        return loss

    run = wrap(step)  # nothing named
    for x, y in batches(device):
        yield run(x, y), dict(replaced), {k: v.clone() for k, v in written.items()}, state_of(model, optimizer)


def _averaged(**options: Any) -> Scenario:
    def averaged(device: str, wrap: Wrap) -> Iterator[Any]:
        model = nn.Sequential(make(device), nn.BatchNorm1d(3).double().to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        average = AveragedModel(model, **options)

        def step(x: torch.Tensor, y: torch.Tensor, begun: bool) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if begun:
                average.update_parameters(model)
            return loss

        run = wrap(step, model, optimizer)
        for i, (x, y) in enumerate(batches(device, 6)):
            yield run(x, y, i > 1), state_of(model, optimizer), [*average.state_dict().values()]

    return averaged


def _normalized(device: str, wrap: Wrap) -> Iterator[Any]:
    """Statistics that are means over all calls, in training and not."""
    norm = nn.BatchNorm1d(3, momentum=None).double().to(device)
    model = nn.Sequential(make(device), norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = wrap(training(model, optimizer), model, optimizer)
    for i, (x, y) in enumerate(batches(device, 6)):
        norm.train(i != 3)
        if i == 4:
            norm.reset_running_stats()
        yield run(x, y), state_of(model, optimizer), [*norm.state_dict().values()]


SCENARIOS["batch norm with means"] = _normalized
SCENARIOS["averaged: SWA"] = _averaged()
SCENARIOS["averaged: SWA, buffers"] = _averaged(use_buffers=True)
SCENARIOS["averaged: EMA, buffers"] = _averaged(multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
