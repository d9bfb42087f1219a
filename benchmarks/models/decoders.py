"""Decoders: a shallow GPT-2 (Radford et al., 2019), whole texts and one token, a small Llama (Touvron et al., 2023)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax
from torch import Tensor, nn

from .attention import Perceptron, SelfAttention
from .case import Case, Weights
from .layers import layer_norm, linear, mlp, rms_norm, self_attention

VOCABULARY = 8192

# ---- GPT-2 ---------------------------------------------------------------------------------------

WIDTH, HEADS, DEPTH, WINDOW = 384, 6, 4, 256
LENGTH = 128
HERE = 100  # the position at which a token is decoded


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = SelfAttention(WIDTH, HEADS, causal=True)
        self.mlp = Perceptron(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The logits of the next token at each position. The head shares the embedding's weight."""

    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def jax_gpt(w: Weights, updates: Weights | None, tokens: jax.Array) -> jax.Array:
    x = w["tokens.weight"][tokens] + w["positions.weight"][: tokens.shape[1]]
    for i in range(DEPTH):
        name = f"blocks.{i}"
        x = x + self_attention(w, f"{name}.attention", layer_norm(w, f"{name}.norm1", x), HEADS, causal=True)
        x = x + mlp(w, f"{name}.mlp", layer_norm(w, f"{name}.norm2", x))
    return layer_norm(w, "norm", x) @ w["tokens.weight"].T


class CachedBlock(Block):
    """A block that decodes one token, whose key and value it writes to its caches in place."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        shape = (1, HEADS, WINDOW, WIDTH // HEADS)
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]  # one token
        qkv = self.attention.qkv(self.norm1(x)).view(1, 1, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        self.keys[:, :, position] = key
        self.values[:, :, position] = value
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        x = x + self.attention.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.mlp(self.norm2(x))


class CachedGPT(GPT):
    def __init__(self) -> None:
        super().__init__(CachedBlock)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:  # type: ignore[override]  # one token
        x = self.tokens(token) + self.positions(position)
        mask = torch.arange(WINDOW, device=token.device)[None] <= position
        for block in self.blocks:
            x = block(x, position, mask)
        return F.linear(self.norm(x), self.tokens.weight)


def jax_cached_gpt(w: Weights, updates: Weights, token: jax.Array, position: jax.Array) -> jax.Array:
    """The caches are (batch, heads, window, width of a head), as torch has them."""
    here = position[0]
    x = w["tokens.weight"][token] + w["positions.weight"][position]
    mask = jnp.arange(WINDOW) <= here
    for i in range(DEPTH):
        name = f"blocks.{i}"
        qkv = linear(w, f"{name}.attention.qkv", layer_norm(w, f"{name}.norm1", x))
        query, key, value = qkv.reshape(3, 1, HEADS, 1, WIDTH // HEADS)
        keys = lax.dynamic_update_slice_in_dim(w[f"{name}.keys"], key, here, 2)
        values = lax.dynamic_update_slice_in_dim(w[f"{name}.values"], value, here, 2)
        updates |= {f"{name}.keys": keys, f"{name}.values": values}
        scores = query @ keys.swapaxes(2, 3) * (WIDTH // HEADS) ** -0.5
        mixed = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)) @ values
        x = x + linear(w, f"{name}.attention.out", mixed.reshape(1, 1, WIDTH))
        x = x + mlp(w, f"{name}.mlp", layer_norm(w, f"{name}.norm2", x))
    return layer_norm(w, "norm", x) @ w["tokens.weight"].T


# ---- Llama ---------------------------------------------------------------------------------------

LLAMA_WIDTH, LLAMA_HIDDEN, LLAMA_DEPTH = 256, 688, 4
QUERIES, KEYS = 8, 4  # heads
HEAD = LLAMA_WIDTH // QUERIES


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(LLAMA_WIDTH, eps=1e-5), nn.RMSNorm(LLAMA_WIDTH, eps=1e-5)
        self.query = nn.Linear(LLAMA_WIDTH, QUERIES * HEAD, bias=False)
        self.key, self.value = (nn.Linear(LLAMA_WIDTH, KEYS * HEAD, bias=False) for _ in range(2))
        self.out = nn.Linear(LLAMA_WIDTH, LLAMA_WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(LLAMA_WIDTH, LLAMA_HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(LLAMA_HIDDEN, LLAMA_WIDTH, bias=False)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        query = self.query(x).view(batch, length, QUERIES, HEAD).transpose(1, 2)
        key = self.key(x).view(batch, length, KEYS, HEAD).transpose(1, 2)
        value = self.value(x).view(batch, length, KEYS, HEAD).transpose(1, 2)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        hidden = self.norm2(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair of features, of the two halves, by an angle that depends on the position."""
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, LLAMA_WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(LLAMA_DEPTH))
        self.norm = nn.RMSNorm(LLAMA_WIDTH, eps=1e-5)
        self.head = nn.Linear(LLAMA_WIDTH, VOCABULARY, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.arange(WINDOW)[:, None] * frequencies
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def jax_llama(w: Weights, updates: Weights | None, tokens: jax.Array) -> jax.Array:
    batch, length = tokens.shape
    cos, sin = w["cos"][:length, None], w["sin"][:length, None]

    def turned(x: jax.Array) -> jax.Array:
        left, right = jnp.split(x, 2, -1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    x = w["tokens.weight"][tokens]
    for i in range(LLAMA_DEPTH):
        name = f"blocks.{i}"
        normal = rms_norm(w, f"{name}.norm1", x)
        query = linear(w, f"{name}.query", normal).reshape(batch, length, QUERIES, HEAD)
        key = linear(w, f"{name}.key", normal).reshape(batch, length, KEYS, HEAD)
        value = linear(w, f"{name}.value", normal).reshape(batch, length, KEYS, HEAD)
        mixed = jax.nn.dot_product_attention(turned(query), turned(key), value, is_causal=True)
        x = x + linear(w, f"{name}.out", mixed.reshape(batch, length, -1))
        normal = rms_norm(w, f"{name}.norm2", x)
        gated = jax.nn.silu(linear(w, f"{name}.gate", normal)) * linear(w, f"{name}.up", normal)
        x = x + linear(w, f"{name}.down", gated)
    return linear(w, "head", rms_norm(w, "norm", x))


def _text() -> Tensor:
    return torch.randint(VOCABULARY, (1, LENGTH))


CASES = [
    Case("gpt2-prefill", GPT, jax_gpt, lambda: (_text(),), _text),
    Case(
        "gpt2-decode",
        CachedGPT,
        jax_cached_gpt,
        lambda: (torch.randint(VOCABULARY, (1, 1)), torch.tensor([HERE])),
        stateful=True,
    ),
    Case("llama-mini", Llama, jax_llama, lambda: (_text(),), _text),
]
