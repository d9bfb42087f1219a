"""Encoders: ViT-tiny (Dosovitskiy et al., 2020), BERT-mini (Devlin et al., 2018), FNet (Lee-Thorp et al., 2021)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn

from .attention import Perceptron, SelfAttention
from .case import Case, Weights
from .layers import conv, layer_norm, linear, mlp, self_attention

# ---- ViT-tiny: norms in front --------------------------------------------------------------------

PIXELS, PATCH = 224, 16
VIT_WIDTH, VIT_HEADS, VIT_DEPTH, VIT_CLASSES = 192, 3, 12, 1000


class ViTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(VIT_WIDTH), nn.LayerNorm(VIT_WIDTH)
        self.attention = SelfAttention(VIT_WIDTH, VIT_HEADS)
        self.mlp = Perceptron(VIT_WIDTH, 4 * VIT_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, VIT_WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, VIT_WIDTH))
        self.position = nn.Parameter(0.02 * torch.randn(1, (PIXELS // PATCH) ** 2 + 1, VIT_WIDTH))
        self.blocks = nn.Sequential(*(ViTBlock() for _ in range(VIT_DEPTH)))
        self.norm, self.head = nn.LayerNorm(VIT_WIDTH), nn.Linear(VIT_WIDTH, VIT_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def jax_vit(w: Weights, updates: Weights | None, x: jax.Array) -> jax.Array:
    x = conv(w, "patches", x, stride=PATCH)
    x = x.reshape(len(x), -1, VIT_WIDTH)
    x = jnp.concatenate([jnp.broadcast_to(w["token"], (len(x), 1, VIT_WIDTH)), x], 1) + w["position"]
    for i in range(VIT_DEPTH):
        name = f"blocks.{i}"
        x = x + self_attention(w, f"{name}.attention", layer_norm(w, f"{name}.norm1", x), VIT_HEADS)
        x = x + mlp(w, f"{name}.mlp", layer_norm(w, f"{name}.norm2", x))
    return linear(w, "head", layer_norm(w, "norm", x[:, 0]))


# ---- BERT-mini: norms behind, padded sentences ---------------------------------------------------

VOCABULARY, LENGTH, BATCH = 30522, 128, 2
WIDTH, HEADS, DEPTH, CLASSES = 256, 4, 4, 2


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.norm(self.tokens(tokens) + self.positions(positions))


class BertBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1 = SelfAttention(WIDTH, HEADS), nn.LayerNorm(WIDTH)
        self.mlp, self.norm2 = Perceptron(WIDTH, 4 * WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    """Classifies a text by its first token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.blocks = nn.ModuleList(BertBlock() for _ in range(DEPTH))
        self.pooler, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None, None, None]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def _jax_embedding(w: Weights, tokens: jax.Array) -> jax.Array:
    x = w["embedding.tokens.weight"][tokens] + w["embedding.positions.weight"][: tokens.shape[1]]
    return layer_norm(w, "embedding.norm", x)


def jax_bert(w: Weights, updates: Weights | None, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    mask = jnp.arange(tokens.shape[1]) < lengths[:, None, None, None]
    x = _jax_embedding(w, tokens)
    for i in range(DEPTH):
        name = f"blocks.{i}"
        mixed = self_attention(w, f"{name}.attention", x, HEADS, mask=mask)
        x = layer_norm(w, f"{name}.norm1", x + mixed)
        x = layer_norm(w, f"{name}.norm2", x + mlp(w, f"{name}.mlp", x))
    return linear(w, "head", jnp.tanh(linear(w, "pooler", x[:, 0])))


# ---- FNet: the Fourier transform in place of attention -------------------------------------------


class FNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = Perceptron(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.fft.fft2(x.float()).real.to(x.dtype)
        x = self.norm1(x + mixed)
        return self.norm2(x + self.mlp(x))


class FNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.blocks = nn.Sequential(*(FNetBlock() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens))[:, 0])


def jax_fnet(w: Weights, updates: Weights | None, tokens: jax.Array) -> jax.Array:
    x = _jax_embedding(w, tokens)
    for i in range(DEPTH):
        name = f"blocks.{i}"
        mixed = jnp.fft.fft2(x.astype(jnp.float32)).real.astype(x.dtype)
        x = layer_norm(w, f"{name}.norm1", x + mixed)
        x = layer_norm(w, f"{name}.norm2", x + mlp(w, f"{name}.mlp", x))
    return linear(w, "head", x[:, 0])


def _text() -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, LENGTH))


def _labels() -> Tensor:
    return torch.randint(CLASSES, (BATCH,))


CASES = [
    Case(
        "vit-tiny",
        ViT,
        jax_vit,
        lambda: (torch.randn(1, 3, PIXELS, PIXELS),),
        lambda: torch.randint(VIT_CLASSES, (1,)),
        images=True,
    ),
    Case("bert-mini", Bert, jax_bert, lambda: (_text(), torch.tensor([LENGTH, LENGTH * 3 // 4])), _labels),
    Case("fnet", FNet, jax_fnet, lambda: (_text(),), _labels),
]
