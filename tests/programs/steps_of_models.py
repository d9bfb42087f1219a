"""Training steps of models that torch runs in ways of its own: compiled, checkpointed, recurrent, in less precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .steps import SCENARIOS, Net, Scenario, Wrap, batches, make, state_of, training

Forward = Callable[[str, nn.Module], Callable[[torch.Tensor], torch.Tensor]]


def _of(make_model: Callable[[], nn.Module], forward_of: Forward = lambda device, model: model) -> Scenario:
    def model_trained(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device, make_model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        forward = forward_of(device, model)

        run = wrap(training(forward, optimizer), model, optimizer)
        for x, y in batches(device, 4):
            yield run(x, y), state_of(model, optimizer)

    return model_trained


class Recurrent(nn.Module):
    """An LSTM over the columns of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 3, num_layers=2, batch_first=True, bidirectional=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x[..., None])[0][:, -1])


class Attending(nn.Module):
    """A layer of a transformer, whose tokens are the rows of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x[None])[0])


class InParts(nn.Module):
    """Computes its hidden layer again in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.net, self.use_reentrant = Net(), use_reentrant
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.net, self.first(x), use_reentrant=self.use_reentrant)  # type: ignore[no-any-return]  # torch says Any


def _compiled(before: bool, **options: Any) -> Forward:
    """A model under `torch.compile` on the device, run once before the step or not."""

    def forward_of(device: str, model: nn.Module) -> Any:
        if device == "cpu":
            return model
        forward = torch.compile(model, **options)
        if before:
            for x, _ in batches(device, 1):
                forward(x).sum().backward()
            model.zero_grad()
        return forward

    return forward_of


def _compiled_in_place(device: str, model: nn.Module) -> nn.Module:
    if device == "jax":
        model.compile(backend="jaten")
    return model


def _part_compiled(device: str, model: nn.Module) -> Any:
    """A function that torch has compiled, of which only part is a graph."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        torch._dynamo.graph_break()
        return model(x) * 2

    if device == "cpu":
        return scaled
    forward = torch.compile(scaled, backend="jaten")
    for x, _ in batches(device, 1):
        forward(x)
    return forward


MODELS: dict[str, Scenario] = {
    "compiled": _of(Net, _compiled(True, backend="jaten")),
    "compiled, not run before": _of(Net, _compiled(False, backend="jaten")),
    "compiled, no backend named": _of(Net, _compiled(True)),
    "compiled in place": _of(Net, _compiled_in_place),
    "compiled function with a break": _of(Net, _part_compiled),
    "checkpoint": _of(lambda: InParts(False)),
    "checkpoint, reentrant": _of(lambda: InParts(True)),
    "LSTM": _of(Recurrent),
    "transformer layer": _of(Attending),
    "spectral_norm": _of(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))),
    "spectral_norm by a hook": _of(lambda: nn.utils.spectral_norm(nn.Linear(4, 3))),
}
SCENARIOS.update({f"model: {name}": run for name, run in MODELS.items()})
