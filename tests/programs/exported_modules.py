"""Modules with what a program may have besides layers, for `torch.export`: branches, trees, constants, views, sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .stateful_modules import MODULES as STATEFUL
from .stateful_modules import WIDTH

MODULES: dict[str, type[nn.Module] | Any] = dict(STATEFUL)


def _module(cls: type[nn.Module]) -> type[nn.Module]:
    MODULES[cls.__name__.lower()] = cls
    return cls


@_module
class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: self.layer(a), lambda a: a.sin(), (x,))


@_module
class Trees(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(WIDTH, WIDTH), nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor, *, scale: float | None = None) -> dict[str, Any]:
        places = torch.arange(x.shape[0], device=x.device) % 5
        return {"a": self.layer(x) + self.table(places), "b": (x.mean(0), x.shape[0]), "c": scale}


@_module
class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.register_buffer("scale", torch.ones(WIDTH), persistent=False)
        self.places = torch.arange(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.tensor([2.0] * WIDTH, device=x.device, dtype=x.dtype) * torch.tensor(0.5, device=x.device)
        return x @ self.weight * self.scale + made + self.places.to(x.device)


@_module
class Views(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        y[:, 0] = 0
        y[1:] += 1
        y.t()[0] *= 2
        parts = x.chunk(2, 1)[0], x[-1], x.unsqueeze(0).expand(3, -1, -1)
        return y, nn.functional.pad(x, (1, 1)), torch.cat([x, y]).view(2, -1), *parts


@_module
class Values(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count <= x.numel())
        return torch.zeros(count, device=x.device) + 1, x * count


@_module
class Selections(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        kept = x[x > 0]
        return kept * 2, kept.new_ones(kept.shape[0]), torch.nonzero(x)[:, 0]


@_module
class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 3, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        image = x[:, None]
        return self.layer(image).amax(1), nn.functional.interpolate(image, scale_factor=2), nn.functional.glu(x)
