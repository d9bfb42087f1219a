"""Attention in tiles of heads and queries, against the same at once and in double precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import jaten_ops  # noqa: F401  # registers the backend and torch.ops.jaten
from jaten_ops.cpu import attention_tiles
from jaten_ops.kernels.attention_parts import attention
from jaten_ops.xla import cpu_features

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Row(NamedTuple):
    query: tuple[int, int, int, int]
    heads: int  # of keys and values
    size: int  # how many keys
    bias: tuple[int, ...] | None = None
    causal: bool = False


ROWS = {
    "heads": Row((2, 4, 40, 8), 4, 40),
    "causal": Row((2, 2, 300, 8), 2, 300, causal=True),
    "causal, fewer keys": Row((1, 2, 300, 8), 2, 140, causal=True),
    "causal, more keys": Row((1, 2, 140, 8), 2, 300, causal=True),
    "groups": Row((2, 6, 40, 8), 2, 50),
    "groups, causal": Row((2, 6, 150, 8), 2, 150, causal=True),
    "padded keys": Row((2, 4, 40, 8), 4, 50, (2, 1, 1, 50)),
    "a bias for each head": Row((2, 4, 40, 8), 4, 50, (1, 4, 40, 50)),
    "a bias for all heads": Row((2, 4, 40, 8), 2, 50, (40, 50)),
    "a bias for each batch": Row((2, 4, 600, 8), 2, 50, (2, 1, 600, 1)),
    "keys whose gradients are turned": Row((1, 2, 40, 8), 2, 128),
    "several batches": Row((6, 2, 20, 8), 2, 20),
    "several batches, groups": Row((6, 4, 20, 8), 2, 20, causal=True),
    "several batches, padded keys": Row((6, 2, 20, 8), 2, 20, (6, 1, 1, 20)),
    "several batches, a bias for each head": Row((6, 2, 20, 8), 2, 20, (1, 2, 20, 20)),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles for small arrays, too, and several of a head."""
    monkeypatch.setattr(attention_tiles, "_LEAST", 0)
    monkeypatch.setattr(attention_tiles, "_LEAST_SHORT", 0)
    monkeypatch.setattr(attention_tiles, "_SCORES", 2**14)


def _operands(row: Row, dtype: torch.dtype) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    batch, _, _, width = row.query
    key, value = (randn(batch, row.heads, row.size, width) for _ in range(2))
    return [randn(*row.query), key, value, None if row.bias is None else randn(*row.bias)]


def _attend(row: Row, query: Any, key: Any, value: Any, bias: Any) -> Any:
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, is_causal=row.causal, enable_gqa=row.query[1] != row.heads
    )


def _results(fn: Any, row: Row, dtype: torch.dtype) -> list[torch.Tensor]:
    operands = [None if x is None else x.requires_grad_(i < 3) for i, x in enumerate(_operands(row, dtype))]
    out = fn(row, *operands)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, operands[:3], cotangent)]


@pytest.mark.parametrize(("name", "dtype"), [*((n, torch.float32) for n in ROWS), ("causal", torch.bfloat16)], ids=str)
def test_results_and_gradients(name: str, dtype: torch.dtype) -> None:
    row = ROWS[name]
    found = _results(torch.compile(_attend, backend="jaten", fullgraph=True), row, dtype)
    expected = _results(_attend, row, torch.float64)
    atens = _results(_attend, row, dtype)
    for mine, exact, aten in zip(found, expected, atens, strict=True):
        # twice ATen's own error, and a rounding of the largest value where that is luckily small
        allowed = 2 * (aten - exact).abs().max().item() + exact.abs().max().item() * 4 * torch.finfo(dtype).eps
        assert (mine - exact).abs().max().item() <= allowed


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_tiles_of_several_heads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "cores", lambda: threads)
    query, key, value, bias = (jnp.asarray(x.numpy()) for x in _operands(ROWS["a bias for each head"], torch.float32))
    found = jax.jit(attention)(query, key, value, bias)
    monkeypatch.setattr(attention_tiles, "_LEAST", np.inf)
    for mine, plain in zip(found, jax.jit(attention)(query, key, value, bias), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)  # products of other shapes round differently


@pytest.mark.parametrize(
    ("batch", "heads", "kilobytes", "tile"),
    [(2, 4, 16, (1, 1)), (2, 4, 8, (1, 2)), (2, 6, 5, (1, 3)), (6, 2, 2, (3, 2)), (7, 2, 2, (1, 2)), (4, 2, 1, (4, 2))],
)
def test_sizes_of_tiles(
    batch: int, heads: int, kilobytes: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 16 KiB in all, on one core."""
    monkeypatch.setattr(cpu_features, "cores", lambda: 1)
    assert attention_tiles._tile(batch, heads, kilobytes * 1024) == tile


def test_masked_rows_are_zero() -> None:
    query, key, value = (jnp.ones((1, 2, 40, 4)) for _ in range(3))
    visible = jnp.arange(40)[:, None] % 2 == jnp.zeros((1, 40), int)
    out, logsumexp = jax.jit(attention)(query, key, value, visible)
    assert (out[:, :, 1::2] == 0).all() and (logsumexp[:, :, 1::2] == 0).all() and (out[:, :, ::2] == 1).all()


def test_the_scores_of_all_heads_are_never_stored() -> None:
    query, key, value = (jnp.ones((2, 4, 64, 8)) for _ in range(3))

    def text(platform: str) -> str:
        lowered = jax.jit(attention).trace(query, key, value).lower(lowering_platforms=(platform,))
        return lowered.as_text()

    assert "2x4x64x64" not in text("cpu")
    assert "2x4x64x64" in text("cuda") and "while" not in text("cuda")
