"""Attention over a sequence whose parts are on several devices (context parallelism), as a ring.

Each device keeps its part of the queries; keys and values go round from device to device, and the softmax is taken part
by part. No device holds the scores of more than two parts.
Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.sharding import PartitionSpec

from ..arrays import partitioned
from ..arrays.abstract_arrays import AnyMesh
from ..arrays.placements import Layout, layout_of_text
from ..errors import UnsupportedInputError
from ..ops.user_ops import op
from ..registry import fake
from ..tensor.mesh_methods import constrained_by

_OP = "jaten_distributed::ring_attention"


@op(
    f"{_OP}(Tensor query, Tensor key, Tensor value, str layout, bool is_causal, float scale) -> Tensor",
    differentiable=["query", "key", "value"],
    static=["scale"],
)
def _ring_attention(query: Any, key: Any, value: Any, layout: str, is_causal: bool, scale: float) -> Any:
    """Attention of (..., length, width) over parts of the length."""
    found = layout_of_text(layout)
    ((_, axes),) = found.dims
    (axis,) = axes or ()
    spec = PartitionSpec(*[None] * (query.ndim - 2), axis, None)
    local = functools.partial(_of_one_part, axis=axis, parts=found.mesh.shape[axis], is_causal=is_causal, scale=scale)
    mapped = jax.shard_map(
        local, mesh=found.mesh, in_specs=(spec, spec, spec), out_specs=spec, axis_names={axis}, check_vma=False
    )
    return mapped(query, key, value)


@fake(_OP)
def _fake_ring_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: str, is_causal: bool, scale: float
) -> torch.Tensor:
    """A tensor of the queries' shape, with the width of the values."""
    return query.new_empty(*query.shape[:-1], value.shape[-1])


def _of_one_part(query: Any, key: Any, value: Any, *, axis: str, parts: int, is_causal: bool, scale: float) -> Any:
    """The results for a device's own queries, in float32 as long as they are sums."""
    own, length = lax.axis_index(axis), query.shape[-2]
    ring = [(i, (i + 1) % parts) for i in range(parts)]
    queries = query.astype(jnp.float32) * scale

    def visit(state: Any, step: Any) -> tuple[Any, None]:
        key, value, largest, total, sums = state
        scores = queries @ jnp.swapaxes(key, -1, -2).astype(jnp.float32)
        if is_causal:
            first = (own - step) % parts * key.shape[-2]
            rows = own * length + jnp.arange(length)[:, None]
            scores = jnp.where(rows >= first + jnp.arange(key.shape[-2])[None, :], scores, -jnp.inf)
        now = jnp.maximum(largest, scores.max(-1, keepdims=True))
        base = jnp.where(jnp.isfinite(now), now, 0)
        weights, faded = jnp.exp(scores - base), jnp.exp(largest - base)
        total = total * faded + weights.sum(-1, keepdims=True)
        sums = sums * faded + weights @ value.astype(jnp.float32)
        return (lax.ppermute(key, axis, ring), lax.ppermute(value, axis, ring), now, total, sums), None

    # of the queries, so that each is on all axes of the mesh on which these are
    like = queries[..., :1] * 0
    sums = jnp.broadcast_to(like, (*queries.shape[:-1], value.shape[-1]))
    (_, _, _, total, sums), _ = lax.scan(visit, (key, value, like - jnp.inf, like, sums), jnp.arange(parts))
    return (sums / total).astype(query.dtype)


def context_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mesh: AnyMesh,
    axis: str = "model",
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """`scaled_dot_product_attention` with the sequence partitioned over an axis of a mesh, as ring attention.

    Each device sees its own part of the queries, and all keys and values one part after the other, so that memory is
    that of a part. It is differentiable, in eager mode, compiled and in `compile_step`.

    Args:
        query, key, value: (..., length, width), floating point, on the device `jax`, of one length and of one number
            of heads. They move to the mesh, with the length over the axis.
        mesh, axis: the mesh and its axis. Its size divides the length.
        is_causal: whether each position sees only those up to its own.
        scale: of the scores; by default 1 / sqrt(width).

    Returns:
        A tensor of the shape and dtype of the queries, partitioned as they are.

    Raises:
        UnsupportedInputError: lengths that differ, or that the axis does not divide; an axis that is not there.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(model=-1)
        >>> q, k, v = (torch.randn(2, 4, 16, 8, device="jax") for _ in range(3))
        >>> distributed.context_parallel_attention(q, k, v, mesh, is_causal=True).shape
        torch.Size([2, 4, 16, 8])
    """
    size, text = _size_of(mesh, axis), _text_of(mesh, axis)
    if query.shape[:-1] != key.shape[:-1] or query.shape[:-1] != value.shape[:-1] or query.shape[-2] % size:
        raise UnsupportedInputError(
            "context_parallel_attention", f"shapes {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}",
            f"one batch, number of heads and length, which {axis!r} of size {size} divides",
        )  # fmt: skip
    placed = [constrained_by(x, text) for x in (query, key, value)]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return torch.ops.jaten_distributed.ring_attention(*placed, text, is_causal, factor)  # type: ignore[no-any-return]  # torch has no types for operators


def _size_of(mesh: AnyMesh, axis: str) -> int:
    if axis not in mesh.axis_names:
        raise UnsupportedInputError("axis", repr(axis), f"an axis of the mesh, {mesh.axis_names}")
    return int(mesh.shape[axis])


def _text_of(mesh: AnyMesh, axis: str) -> str:
    return Layout(partitioned.auto_mesh(mesh), ((-2, (axis,)),), is_open=True).text()


for _fn in (_size_of, _text_of):
    # as torch.compiler.assume_constant_result, which would import Dynamo
    setattr(_fn, "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute
