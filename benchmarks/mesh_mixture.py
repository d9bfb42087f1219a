"""A mixture of experts that lie on different devices: in torch with a plan, and in JAX.

Each token goes to some of the experts, which take as many tokens as they have places; the rest are dropped. Tokens are
sent by a product with a mask, or by their indices. Lepikhin et al., "GShard", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax.sharding import PartitionSpec
from torch import Tensor, nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import PrepareModuleInputOutput

LAYERS, EXPERTS, CHOSEN, WIDTH, HIDDEN, LENGTH, BATCH = 2, 8, 2, 48, 80, 16, 8
PLACES = 2 * LENGTH * CHOSEN // EXPERTS  # of an expert for each sequence


def plan(axis: str) -> dict[str, Any]:
    """The plan of experts over an axis, to which tokens come from the parts of the batch, and then return."""
    there_and_back = PrepareModuleInputOutput(
        input_layouts=Shard(1), desired_input_layouts=Shard(0), output_layouts=Shard(0), desired_output_layouts=Shard(1)
    )
    over = PartitionSpec(axis)
    return {"*.experts.up": over, "*.experts.down": over, "*.experts": there_and_back}


class Experts(nn.Module):
    """The experts, which take and give (experts, batch, places, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ebch,ehd->ebcd", F.gelu(torch.einsum("ebcd,edh->ebch", x, self.up)), self.down)


class Mixture(nn.Module):
    """A norm, a router, and experts beside a residual connection.

    Args:
        by: "mask" or "index": how tokens are sent to the experts.
    """

    def __init__(self, by: str) -> None:
        super().__init__()
        self.norm, self.router, self.experts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False), Experts()
        self.send = {"mask": self.by_mask, "index": self.by_index}[by]

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        shares, at = self.router(h).softmax(-1).topk(CHOSEN)
        chosen = F.one_hot(at, EXPERTS).flatten(1, 2)
        place = (chosen.cumsum(1) * chosen).sum(-1) - 1
        return x + self.send(h, shares, at.flatten(1), place)

    def by_mask(self, h: Tensor, shares: Tensor, at: Tensor, place: Tensor) -> Tensor:
        there = (
            F.one_hot(at, EXPERTS)[..., None] * (place[..., None] == torch.arange(PLACES, device=h.device))[:, :, None]
        )
        mask = there.unflatten(1, (LENGTH, CHOSEN)).to(h.dtype)
        found = self.experts(torch.einsum("btkec,btd->ebcd", mask, h))
        return torch.einsum("btkec,btk,ebcd->btd", mask, shares, found)

    def by_index(self, h: Tensor, shares: Tensor, at: Tensor, place: Tensor) -> Tensor:
        places = EXPERTS * PLACES  # and one more, for tokens that are dropped
        slot = torch.where(place < PLACES, at * PLACES + place, places)[..., None].expand(-1, -1, WIDTH)
        sent = h.new_zeros(len(h), places + 1, WIDTH).scatter_add(1, slot, h.repeat_interleave(CHOSEN, 1))
        found = self.experts(sent[:, :-1].unflatten(1, (EXPERTS, PLACES)).transpose(0, 1))
        back = F.pad(found.transpose(0, 1).flatten(1, 2), (0, 0, 0, 1)).gather(1, slot)
        return (back.unflatten(1, (LENGTH, CHOSEN)) * shares[..., None]).sum(2)


def mixtures(by: str) -> nn.Module:
    return nn.Sequential(*(Mixture(by) for _ in range(LAYERS)))


def some_vectors(count: int = BATCH) -> Tensor:
    return torch.randn(count, LENGTH, WIDTH)


def loss_by_hand(
    weights: dict[str, jax.Array], x: jax.Array, put: Callable[[jax.Array, PartitionSpec], jax.Array], by: str
) -> jax.Array:
    """The mean square of what the same model gives, with `put` for each constraint."""
    for i in range(LAYERS):
        w = {name.removeprefix(f"{i}."): weight for name, weight in weights.items()}
        h = _normed(x, w["norm.weight"], w["norm.bias"])
        scores = jax.nn.softmax(h @ w["router.weight"].T)
        at = jnp.argsort(-scores)[..., :CHOSEN]  # lax.top_k would gather the scores
        shares, at = jnp.take_along_axis(scores, at, -1), at.reshape(len(x), -1)
        chosen = jax.nn.one_hot(at, EXPERTS, dtype=jnp.int32)
        place = (jnp.cumsum(chosen, 1) * chosen).sum(-1) - 1

        def experts(sent: jax.Array, w: dict[str, jax.Array] = w) -> jax.Array:
            there, back = PartitionSpec("expert"), PartitionSpec(None, "expert")
            sent = put(put(sent, back), there)
            hidden = jax.nn.gelu(jnp.einsum("ebcd,edh->ebch", sent, w["experts.up"]), approximate=False)
            return put(put(jnp.einsum("ebch,ehd->ebcd", hidden, w["experts.down"]), there), back)

        x = x + {"mask": _by_mask, "index": _by_index}[by](h, shares, at, place, experts)
    return jnp.mean(x * x)


def _by_mask(h: Any, shares: Any, at: Any, place: Any, experts: Callable[[jax.Array], jax.Array]) -> jax.Array:
    there = (
        jax.nn.one_hot(at, EXPERTS, dtype=h.dtype)[..., None] * jax.nn.one_hot(place, PLACES, dtype=h.dtype)[:, :, None]
    )
    mask = there.reshape(*h.shape[:2], CHOSEN, EXPERTS, PLACES)
    return jnp.einsum("btkec,btk,ebcd->btd", mask, shares, experts(jnp.einsum("btkec,btd->ebcd", mask, h)))


def _by_index(h: Any, shares: Any, at: Any, place: Any, experts: Callable[[jax.Array], jax.Array]) -> jax.Array:
    slot = jnp.where(place < PLACES, at * PLACES + place, EXPERTS * PLACES)
    empty = jnp.zeros((EXPERTS * PLACES + 1, WIDTH), h.dtype)
    sent = jax.vmap(lambda slot, h: empty.at[slot].add(h))(slot, jnp.repeat(h, CHOSEN, 1))[:, :-1]
    found = experts(sent.reshape(len(h), EXPERTS, PLACES, WIDTH).swapaxes(0, 1)).swapaxes(0, 1)
    padded = jnp.pad(found.reshape(len(h), -1, WIDTH), ((0, 0), (0, 1), (0, 0)))
    back = jax.vmap(lambda found, slot: found[slot])(padded, slot)
    return (back.reshape(*h.shape[:2], CHOSEN, WIDTH) * shares[..., None]).sum(2)


def _normed(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5) * weight + bias
