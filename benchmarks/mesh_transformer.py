"""A transformer whose values are partitioned along the sequence between blocks: in torch with a plan, and in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax.sharding import PartitionSpec
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.utils.checkpoint import checkpoint

BLOCKS, HEADS, WIDTH, VOCABULARY, LENGTH, BATCH = 2, 8, 64, 128, 32, 8

# as in torch's tutorial of tensor parallelism
PLAN: dict[str, Any] = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "blocks.*.*_norm": SequenceParallel(),
    "blocks.*.attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    "blocks.*.attention.[qkv]": ColwiseParallel(),
    "blocks.*.attention.o": RowwiseParallel(output_layouts=Shard(1)),
    "blocks.*.mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    "blocks.*.mlp.gate": ColwiseParallel(),
    "blocks.*.mlp.up": ColwiseParallel(),
    "blocks.*.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1)),
}


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        result: Tensor = self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return result


class GatedMLP(nn.Module):
    """Two matrices that meet in a product, and one back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """A block, with a norm before each of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.attention, self.mlp = Attention(), GatedMLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Transformer(nn.Module):
    """A small language model in the manner of Llama, which gives the scores of the next token.

    Args:
        checkpointed: whether the backward pass computes each block again.
    """

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        result: Tensor = self.head(self.norm(x))
        return result


def some_tokens(count: int = BATCH) -> Tensor:
    return torch.randint(VOCABULARY, (count, LENGTH))


def language_loss(scores: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def loss_by_hand(
    weights: dict[str, jax.Array],
    tokens: jax.Array,
    put: Callable[[jax.Array, PartitionSpec], jax.Array],
    checkpointed: bool = False,
) -> jax.Array:
    """The loss of the same model, with `put` for each constraint; axes that the mesh lacks count as None."""
    sequence, whole = PartitionSpec("data", "model"), PartitionSpec("data")
    columns, heads = PartitionSpec("data", None, "model"), PartitionSpec("data", None, "model")

    def block(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = put(_normed(x, w["attention_norm.weight"]), whole)
        split = (*h.shape[:2], HEADS, -1)
        q, k, v = (put((h @ w[f"attention.{n}.weight"].T).reshape(split), heads) for n in "qkv")
        mixed = put(_attention(q, k, v).reshape(h.shape), columns)
        x = x + put(mixed @ w["attention.o.weight"].T, sequence)
        h = put(_normed(x, w["mlp_norm.weight"]), whole)
        gate, up = (put(h @ w[f"mlp.{n}.weight"].T, columns) for n in ("gate", "up"))
        return x + put((jax.nn.silu(gate) * up) @ w["mlp.down.weight"].T, sequence)

    x = put(put(weights["embedding.weight"][tokens], whole), sequence)
    for i in range(BLOCKS):
        w = {name.removeprefix(f"blocks.{i}."): weight for name, weight in weights.items()}
        x = (jax.checkpoint(block) if checkpointed else block)(w, x)
    scores = put(put(_normed(x, weights["norm.weight"]), whole) @ weights["head.weight"].T, columns)
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), tokens[..., None], -1).mean()


def _normed(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of (batch, length, heads, width)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)
