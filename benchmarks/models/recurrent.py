"""Models with a state: a small Mamba (Gu and Dao, 2023) and an LSTM."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax
from torch import Tensor, nn

from .case import Case, Weights
from .layers import linear, rms_norm

VOCABULARY, BATCH = 1024, 4

# ---- Mamba ---------------------------------------------------------------------------------------

WIDTH, INNER, STATE, RANK, WINDOW, DEPTH, LENGTH = 128, 256, 16, 8, 4, 2, 16


class MambaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.enter, self.leave = nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.conv = nn.Conv1d(INNER, INNER, WINDOW, groups=INNER, padding=WINDOW - 1)
        self.select, self.step = nn.Linear(INNER, RANK + 2 * STATE, bias=False), nn.Linear(RANK, INNER)
        self.decay = nn.Parameter(torch.arange(1.0, STATE + 1).log().repeat(INNER, 1))
        self.skip = nn.Parameter(torch.ones(INNER))

    def scan(self, x: Tensor) -> Tensor:
        """The selective scan: x is (batch, length, inner), the state (batch, inner, state)."""
        step, write, read = self.select(x).split([RANK, STATE, STATE], -1)
        step = F.softplus(self.step(step))
        factor = torch.exp(-self.decay.exp() * step[..., None])
        term = (step * x)[..., None] * write[:, :, None]
        state = torch.zeros_like(term[:, 0])
        outputs = []
        for i in range(x.shape[1]):
            state = factor[:, i] * state + term[:, i]
            outputs.append((state @ read[:, i, :, None]).squeeze(-1))
        return torch.stack(outputs, 1) + self.skip * x

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.enter(self.norm(x)).chunk(2, -1)
        inner = self.conv(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return x + self.leave(self.scan(F.silu(inner)) * F.silu(gate))


class Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(MambaBlock() for _ in range(DEPTH)))
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-5), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens))))


def _jax_selective_scan(w: Weights, name: str, x: jax.Array) -> jax.Array:
    step, write, read = jnp.split(linear(w, f"{name}.select", x), [RANK, RANK + STATE], -1)
    step = jax.nn.softplus(linear(w, f"{name}.step", step))
    factor = jnp.exp(-jnp.exp(w[f"{name}.decay"]) * step[..., None])
    term = (step * x)[..., None] * write[:, :, None]

    def advance(state: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        factor, term, read = now
        state = factor * state + term
        return state, jnp.einsum("bds,bs->bd", state, read)

    _, outputs = lax.scan(
        advance, jnp.zeros_like(term[:, 0]), (factor.swapaxes(0, 1), term.swapaxes(0, 1), read.swapaxes(0, 1))
    )
    return outputs.swapaxes(0, 1) + w[f"{name}.skip"] * x


def jax_mamba(w: Weights, updates: Weights | None, tokens: jax.Array) -> jax.Array:
    x = w["tokens.weight"][tokens]
    for i in range(DEPTH):
        name = f"blocks.{i}"
        inner, gate = jnp.split(linear(w, f"{name}.enter", rms_norm(w, f"{name}.norm", x)), 2, -1)
        inner = lax.conv_general_dilated(
            inner,
            w[f"{name}.conv.weight"],
            (1,),
            [(WINDOW - 1, 0)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=INNER,
        )
        inner = jax.nn.silu(inner + w[f"{name}.conv.bias"])
        x = x + linear(w, f"{name}.leave", _jax_selective_scan(w, name, inner) * jax.nn.silu(gate))
    return linear(w, "head", rms_norm(w, "norm", x))


# ---- LSTM ----------------------------------------------------------------------------------------

LSTM_WIDTH, LSTM_DEPTH, LSTM_LENGTH, LSTM_BATCH = 256, 1, 16, 16


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, LSTM_WIDTH)
        self.lstm = nn.LSTM(LSTM_WIDTH, LSTM_WIDTH, LSTM_DEPTH, batch_first=True)
        self.head = nn.Linear(LSTM_WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(tokens))[0])


def jax_lstm(w: Weights, updates: Weights | None, tokens: jax.Array) -> jax.Array:
    x = w["tokens.weight"][tokens].swapaxes(0, 1)
    for layer in range(LSTM_DEPTH):
        recurrent = w[f"lstm.weight_hh_l{layer}"]
        # the part of the input at all steps at once
        projected = x @ w[f"lstm.weight_ih_l{layer}"] + w[f"lstm.bias_ih_l{layer}"] + w[f"lstm.bias_hh_l{layer}"]

        def advance(
            carry: tuple[jax.Array, jax.Array], now: jax.Array, recurrent: jax.Array = recurrent
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            hidden, cell = carry
            enter, forget, new, leave = jnp.split(now + hidden @ recurrent, 4, -1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((x.shape[1], LSTM_WIDTH), x.dtype)
        _, x = lax.scan(advance, (zeros, zeros), projected)
    return linear(w, "head", x.swapaxes(0, 1))


def _text(batch: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length))


CASES = [
    Case("mamba-mini", Mamba, jax_mamba, lambda: (_text(BATCH, LENGTH),), lambda: _text(BATCH, LENGTH)),
    Case(
        "lstm",
        LSTM,
        jax_lstm,
        lambda: (_text(LSTM_BATCH, LSTM_LENGTH),),
        lambda: _text(LSTM_BATCH, LSTM_LENGTH),
        dynamo=(("allow_rnn", True),),
    ),
]
