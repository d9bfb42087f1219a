"""A training step of transformers' Llama over a mesh that is not there, beside the same step in plain JAX.

python -m benchmarks.mesh_llama    # with the sizes of Llama 3 8B, in layers of which there are fewer
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from torch import Tensor, nn

from jaten_ops import distributed
from jaten_ops.distributed.costs import traffic_of
from jaten_ops.distributed.estimates import Estimate
from jaten_ops.xla import cpu_client

Weights = dict[str, jax.Array]
RATE, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
SIZES_OF_8B: dict[str, int] = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
SMALL: dict[str, int] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def llama(mesh: AbstractMesh, layers: int, sizes: dict[str, int] = SIZES_OF_8B) -> nn.Module:
    """A model without values, partitioned over both axes of a mesh."""
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers, use_cache=False)  # type: ignore[arg-type]  # its other parameters are no numbers
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    return distributed.fully_shard(distributed.parallelize_module(model, mesh, "auto"), mesh)


def some_tokens(mesh: AbstractMesh, batch: int, length: int) -> Tensor:
    tokens: Tensor = distributed.distribute_batch(torch.empty(batch, length, dtype=torch.int64, device="meta"), mesh)
    return tokens


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    """A step on a batch of tokens, as people write it."""

    def step(tokens: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def of_jaten(model: nn.Module, tokens: Tensor, mesh: AbstractMesh) -> Estimate:
    """The cost of a step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, BETAS, EPS, DECAY)
    return distributed.estimate(training_step(model, optimizer), tokens, mesh=mesh)


def loss_by_hand(config: Any, weights: Weights, tokens: jax.Array, checkpointed: bool = False) -> jax.Array:
    """The mean cross-entropy of each token but the first; each layer is computed again for its gradient, or not."""
    angles = _angles(config, tokens.shape[1])

    def layer(w: Weights, x: jax.Array) -> jax.Array:
        normed = _normed(x, w["input_layernorm"], config.rms_norm_eps)
        q, k, v = (_heads(normed @ w[f"self_attn.{n}_proj"].T, config.head_dim) for n in "qkv")
        mixed = _attention(_turned(q, angles), _turned(k, angles), v)
        x = x + mixed @ w["self_attn.o_proj"].T
        normed = _normed(x, w["post_attention_layernorm"], config.rms_norm_eps)
        gate, up = (normed @ w[f"mlp.{n}_proj"].T for n in ("gate", "up"))
        return x + (jax.nn.silu(gate) * up) @ w["mlp.down_proj"].T

    x = jnp.take(weights["model.embed_tokens.weight"], tokens, axis=0, mode="clip")
    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}."
        own = {n.removeprefix(at).removesuffix(".weight"): w for n, w in weights.items() if n.startswith(at)}
        x = (jax.checkpoint(layer) if checkpointed else layer)(own, x)
    scores = _normed(x, weights["model.norm.weight"], config.rms_norm_eps) @ weights["lm_head.weight"].T
    shifted = jax.nn.log_softmax(scores[:, :-1])
    return -jnp.mean(jnp.take_along_axis(shifted, tokens[:, 1:, None], -1))


def _normed(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return weight * (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps))


def _heads(x: jax.Array, width: int) -> jax.Array:
    """(batch, tokens, heads x width) as (batch, heads, tokens, width)."""
    return x.reshape(*x.shape[:2], -1, width).swapaxes(1, 2)


def _angles(config: Any, length: int) -> jax.Array:
    rates = 1 / config.rope_parameters["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    return jnp.arange(length, dtype=jnp.float32)[:, None] * np.tile(rates, 2).astype("float32")


def _turned(x: jax.Array, angles: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, -1)
    return x * jnp.cos(angles) + jnp.concatenate([-second, first], -1) * jnp.sin(angles)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    k, v = (jnp.repeat(a, q.shape[1] // k.shape[1], 1) for a in (k, v))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tri(q.shape[2], dtype=bool), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
    return mixed.swapaxes(1, 2).reshape(*q.shape[:1], q.shape[2], -1)


def of_jax(model: Any, tokens: Any, mesh: AbstractMesh, checkpointed: bool = False) -> Estimate:
    """The cost of the same step, written by hand: weights are gathered over the axis of the data at their use."""
    devices = np.array(cpu_client.absent(mesh.size)).reshape(mesh.axis_sizes)
    there = Mesh(devices, mesh.axis_names, axis_types=(AxisType.Auto,) * devices.ndim)

    def put(value: jax.Array, spec: PartitionSpec) -> jax.Array:
        return jax.lax.with_sharding_constraint(value, NamedSharding(there, spec))

    def as_in(tensor: Any, dtype: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(there, tensor.sharding.spec)
        return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype, sharding=sharding)

    had = {name: as_in(p, np.float32) for name, p in model.named_parameters()}
    specs = {name: one.sharding.spec for name, one in had.items()}

    def loss(weights: Weights, tokens: jax.Array) -> jax.Array:
        used = {n: put(put(w, specs[n]), _without_data(specs[n])) for n, w in weights.items()}
        return loss_by_hand(model.config, used, tokens, checkpointed)

    def step(weights: Weights, first: Weights, second: Weights, count: jax.Array, tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, tokens)
        placed = {n: put(g, specs[n]) for n, g in gradients.items()}
        first = {n: BETAS[0] * m + (1 - BETAS[0]) * placed[n] for n, m in first.items()}
        second = {n: BETAS[1] * v + (1 - BETAS[1]) * placed[n] ** 2 for n, v in second.items()}
        count = count + 1
        steps = {
            n: m / (1 - BETAS[0] ** count) / (jnp.sqrt(second[n] / (1 - BETAS[1] ** count)) + EPS)
            for n, m in first.items()
        }
        return value, {n: w * (1 - RATE * DECAY) - RATE * steps[n] for n, w in weights.items()}, first, second, count

    shardings = {name: one.sharding for name, one in had.items()}
    count = jax.ShapeDtypeStruct((), np.float32, sharding=NamedSharding(there, PartitionSpec()))
    with jax.enable_x64(True):  # for tokens in int64
        jitted = jax.jit(step, out_shardings=(None, *[shardings] * 3, None), donate_argnums=(0, 1, 2, 3))
        executable = jitted.lower(had, had, had, count, as_in(tokens, np.int64)).compile()
    memory: Any = executable.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Estimate(memory.argument_size_in_bytes, outputs, memory.temp_size_in_bytes, traffic_of(executable))


def _without_data(spec: PartitionSpec) -> PartitionSpec:
    kept = [tuple(a for a in ((entry,) if isinstance(entry, str) else entry or ()) if a != "data") for entry in spec]
    return PartitionSpec(*(axes or None for axes in kept))


def compared(sizes: dict[str, int], layers: int, axes: tuple[int, int], batch: int, length: int) -> list[Estimate]:
    """The cost of a step on each device: jaten's, and plain JAX's."""
    mesh = AbstractMesh(axes, ("data", "model"))
    model, tokens = llama(mesh, layers, sizes), some_tokens(mesh, batch, length)
    return [of_jaten(model, tokens, mesh), of_jax(model, tokens, mesh)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--mesh", type=int, nargs=2, default=(16, 16), metavar=("DATA", "MODEL"))
    parser.add_argument("--tokens", type=int, nargs=2, default=(64, 1024), metavar=("BATCH", "LENGTH"))
    given = parser.parse_args()
    ours, by_hand = compared(SIZES_OF_8B, given.layers, tuple(given.mesh), *given.tokens)
    print(f"jaten: {ours}\n\nplain JAX: {by_hand}\n\ntemporaries: {ours.temporaries / by_hand.temporaries:.3f}")


if __name__ == "__main__":
    main()
