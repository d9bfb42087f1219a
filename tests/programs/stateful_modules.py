"""Modules that keep something from call to call, or have parameters that are computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

ROWS, WIDTH, CLASSES = 4, 6, 4


class Recurrent(nn.Module):
    """Two directions of a GRU over three steps of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(2, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(x.reshape(-1, 3, 2))[0][:, -1])
        return result


class Attention(nn.Module):
    """Attention over three tokens of two numbers, with a norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(2, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(-1, 3, 2))
        result: Tensor = self.head(self.norm(tokens + self.attention(tokens, tokens, tokens)[0]).mean(1))
        return result


class Embedded(nn.Module):
    """Rows of a table, of which one is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, WIDTH, padding_idx=0), nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        classes = (x[:, :2].abs() * 5).long().clamp(max=10)
        result: Tensor = self.head(self.table(classes).flatten(1)) + x.sum() * 0.1
        return result


class Counting(nn.Module):
    """Counts its calls, moves a mean that it subtracts, and stores its result in an attribute."""

    mean: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.mean(0).detach(), 0.1)
        y = self.head(x - self.mean)
        self.last = y.detach()
        return torch.tanh(y) * (1 + self.calls * 0.01)


class Remembering(nn.Module):
    """Has a buffer of what it computed before, which it replaces and then writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("history", torch.zeros(5, CLASSES))
        self.register_buffer("at", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        self.history = torch.roll(self.history, 1, 0)
        self.history[0] = y.detach().mean(0)
        self.at.add_(1)
        result: Tensor = y.cos() + self.history.sum(0)
        return result


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(torch.sin(self.two(torch.sin(self.one(x)))))
        return result


def _convolutional() -> nn.Module:
    image, norm = nn.Unflatten(1, (1, 2, 3)), nn.BatchNorm2d(3, momentum=None)
    return nn.Sequential(
        image, nn.Conv2d(1, 3, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(18, CLASSES)
    )  # fmt: skip


def _with_first(layer: nn.Module, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(layer, *rest, nn.Linear(5, CLASSES))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: _with_first(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.GELU()),
    "convolutional": _convolutional,
    "recurrent": Recurrent,
    "attention": Attention,
    "embedded": Embedded,
    "counting": Counting,
    "remembering": Remembering,
    "tied": Tied,
    "spectral norm": lambda: _with_first(parametrizations.spectral_norm(nn.Linear(WIDTH, 5)), nn.Tanh()),
    "weight norm": lambda: _with_first(parametrizations.weight_norm(nn.Linear(WIDTH, 5)), nn.SiLU()),
}
