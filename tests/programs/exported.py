"""Programs to export: modules and functions, an example of their arguments, and other sizes for open ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

BATCH, LENGTH = Dim("batch", min=1, max=64), Dim("length", min=2, max=64)


@dataclass(frozen=True)
class Program:
    """A row of the table.

    Attributes:
        make: the module or function.
        args, kwargs: an example of its arguments.
        dynamic: its open sizes.
        other: arguments of other sizes.
    """

    make: Callable[[], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: Any = None
    other: tuple[tuple[Any, ...], dict[str, Any]] | None = None


class Block(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(d), nn.MultiheadAttention(d, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * d, d))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        out: Tensor = x + self.feed(x)
        return out


class Language(nn.Module):
    """A causal model whose head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(40, 16), nn.Embedding(64, 16)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 40, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        n = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(n, device=ids.device))
        mask = torch.full((n, n), float("-inf"), device=ids.device).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return {"logits": self.head(x) * scale, "last": (x[:, -1], ids.sum()), "nothing": None}


class Masked(nn.Module):
    """An encoder of padded sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.query = nn.Embedding(30, 16), nn.Linear(16, 16)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(ids)
        scores = (self.query(x) @ x.transpose(1, 2)).masked_fill(~attention_mask[:, None], -1e9)
        x = scores.softmax(-1) @ x
        return (x * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.token = nn.Conv2d(3, 16, 4, stride=4), Block(), nn.Parameter(torch.zeros(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        out: Tensor = self.block(x)[:, 0]
        return out


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.top = nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(12, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.sigmoid(self.top(torch.cat([self.bag(batch["ids"]), batch["numbers"]], 1))).squeeze(1)


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 8, 2, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(x)[0])
        return out


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def around() -> Callable[..., Any]:
    """A function that reads a tensor and a module from around it."""
    weight, layer = torch.randn(4, 4), nn.Linear(4, 3)

    def function(x: Tensor, times: int = 2) -> Tensor:
        out: Tensor = layer(x @ weight) * times
        return out

    return function


def _numbers(x: Tensor) -> list[Tensor]:
    return [x.argmax(-1), (x > 0).any(0), x.sort(1).values.to(torch.float64), x.cumsum(0).half()]


def _ids(*shape: int) -> Tensor:
    return torch.randint(20, shape)


def _recommended(n: int) -> dict[str, Tensor]:
    return {"ids": _ids(n, 5), "numbers": torch.randn(n, 4)}


PROGRAMS: dict[str, Program] = {
    "perceptron": Program(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2)), (torch.randn(3, 4),),
        dynamic=({0: BATCH},), other=((torch.randn(7, 4),), {}),
    ),
    "images": Program(
        images, (torch.randn(2, 3, 10, 10),), dynamic=({0: BATCH},), other=((torch.randn(1, 3, 10, 10),), {})
    ),
    "language": Program(
        Language, (_ids(2, 6),), {"scale": 0.5}, {"ids": {0: BATCH, 1: LENGTH}, "scale": None},
        ((_ids(3, 9),), {"scale": 0.5}),
    ),
    "masked": Program(
        Masked, (_ids(2, 5), torch.rand(2, 5) > 0.3), {}, ({0: BATCH, 1: LENGTH}, {0: BATCH, 1: LENGTH}),
        ((_ids(4, 8), torch.rand(4, 8) > 0.3), {}),
    ),
    "patches": Program(Patches, (torch.randn(2, 3, 8, 8),), {}, ({0: BATCH},), ((torch.randn(5, 3, 8, 8),), {})),
    "recommender": Program(
        Recommender, (_recommended(3),), {}, ({"ids": {0: BATCH}, "numbers": {0: BATCH}},), ((_recommended(6),), {})
    ),
    "sequences": Program(Sequences, (torch.randn(2, 5, 4),), {}, ({0: BATCH},), ((torch.randn(4, 5, 4),), {})),
    "a function": Program(around, (torch.randn(2, 4),), {"times": 3}),
    "numbers": Program(lambda: _numbers, (torch.randn(3, 4),)),
    "bfloat16": Program(lambda: nn.Linear(4, 4).bfloat16(), (torch.randn(3, 4).bfloat16(),)),
    "float64": Program(lambda: nn.Linear(4, 4).double(), (torch.randn(3, 4).double(),)),
    "means over open sizes": Program(
        lambda: lambda x: (x.mean((0, 1)), x.var(1), functional.normalize(x, dim=1), x / x.shape[1], x.amax(0)),
        (torch.randn(3, 5, 4),), {}, ({0: BATCH, 1: LENGTH},), ((torch.randn(2, 7, 4),), {}),
    ),
}  # fmt: skip
