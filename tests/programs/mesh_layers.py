"""Layers whose weights a plan partitions, and the collectives in their compiled programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jax.sharding import PartitionSpec
from torch import Tensor, nn

import jaten_ops
from jaten_ops import distributed

from ..harness.compiled_texts import programs

ROWS, COLUMNS = PartitionSpec("model"), PartitionSpec(None, "model")
WIDTH, VOCABULARY = 48, 136  # sizes that no value of a batch has


class Attention(nn.Module):
    """Causal attention of four heads, as a model of today has it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        result: Tensor = self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return result


class Language(nn.Module):
    """An embedding, a norm and a head, with the cross-entropy of a text against itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.norm(self.embedding(tokens))).flatten(0, 1), tokens.flatten())


def _images() -> Tensor:
    return torch.randn(4, 3, 10, 10)


def _text() -> Tensor:
    return torch.randn(4, 6, WIDTH)


Layer = tuple[Callable[[], nn.Module], Callable[[], Tensor], dict[str, Any]]
LAYERS: dict[str, Layer] = {
    "a convolution": (lambda: nn.Conv2d(3, 32, 3, padding=1), _images, {"weight": ROWS, "bias": ROWS}),
    "two convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 12, 3)),
        _images,
        {"0.weight": ROWS, "0.bias": ROWS, "2.weight": COLUMNS},
    ),
    "a matrix and a norm": (
        lambda: nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH), nn.LayerNorm(WIDTH)),
        _text,
        {"0": "colwise", "2": "rowwise"},
    ),
    "attention": (Attention, _text, {"[qkv]": "colwise", "o": "rowwise"}),
    "a language model": (
        Language,
        lambda: torch.randint(VOCABULARY, (4, 6)),
        {"embedding": "embedding_rowwise", "head": "colwise"},
    ),
    "an embedding by columns": (
        Language,
        lambda: torch.randint(VOCABULARY, (4, 6)),
        {"embedding": "embedding_colwise", "head": "colwise"},
    ),
    "pooling and batch norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 24),
        ),
        _images,
        {"0.weight": ROWS, "6": "rowwise"},
    ),
}  # fmt: skip
WAYS = ("compile", "step")


_KINDS = "all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter"
_COLLECTIVE = re.compile(rf"= \(?(.*?)\)? ({_KINDS})(-start)?\(")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


def collectives(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """The collectives of an optimized program: the kind and the shape of each result."""
    return [
        (kind, tuple(int(n) for n in shape.split(",") if n))
        for results, kind, _ in _COLLECTIVE.findall(text)
        for shape in _SHAPE.findall(results)
    ]


def gathered(name: str, way: str) -> dict[str, Any]:
    """The collectives in a layer's training step, and those that move a whole partitioned weight."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    build, make, plan = LAYERS[name]
    mesh = distributed.make_mesh(data=2, model=4)
    module = distributed.parallelize_module(build(), mesh, plan)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    call = torch.compile(module, backend="jaten") if way == "compile" else module

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jaten_ops.compile_step(step, module, optimizer) if way == "step" else step
    x = distributed.distribute_batch(make(), mesh)
    with programs() as texts:
        for _ in range(3):
            run(x)
    weights: list[Any] = [p for p in module.parameters() if p.dim() > 1]
    shapes = {tuple(sorted(p.shape)) for p in weights if not p.sharding.is_fully_replicated}
    found = [c for text in texts for c in collectives(text)]
    whole = [(kind, shape) for kind, shape in found if tuple(sorted(n for n in shape if n > 1)) in shapes]
    return {"programs": len(texts), "collectives": sorted(set(found)), "whole": whole}
