"""Attention over a partitioned sequence, beside torch's over the whole of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import Shard

import jaten_ops
from jaten_ops import distributed
from jaten_ops.errors import UnsupportedInputError

from .mesh_programs import Programs

MESHES = {"sequence": {"model": 8}, "batch and sequence": {"data": 2, "model": 4}}
WAYS = ("eager", "compiled", "step")
PROGRAMS = Programs()


def attention(mesh_name: str, causal: str, way: str) -> None:
    """Values, gradients and places of one way to call it."""
    mesh, is_causal = distributed.make_mesh(**MESHES[mesh_name]), causal == "causal"
    torch.manual_seed(0)
    data = [torch.randn(4, 2, 16, width) for width in (8, 8, 6)]
    wanted = torch.randn(4, 2, 16, 6)
    given = [x.clone().requires_grad_() for x in data]
    expected = F.scaled_dot_product_attention(*given, is_causal=is_causal)
    expected.backward(wanted)

    def put(x: Tensor) -> Tensor:
        placed: Tensor = distributed.distribute_batch(x, mesh) if "data" in mesh.shape else x.to("jax")
        return placed

    parts, wanted = [put(x).requires_grad_() for x in data], put(wanted)

    def call(*parts: Tensor) -> Tensor:
        return distributed.context_parallel_attention(*parts, mesh, is_causal=is_causal)

    run: Callable[..., Tensor] = torch.compile(call, backend="jaten", fullgraph=True) if way == "compiled" else call

    def step() -> Tensor:
        result = run(*parts)
        (result * wanted).sum().backward()
        return result.detach()

    if way == "step":
        step = jaten_ops.compile_step(step, parts)
        step()
        for part in parts:
            part.grad = None
    result = step()
    torch.testing.assert_close(result.cpu(), expected.detach(), rtol=1e-5, atol=2e-6)
    assert "model" in str(result.sharding.spec)  # type: ignore[attr-defined]  # a tensor of the device
    for one, other in zip(parts, given, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-5, atol=4e-6)


@PROGRAMS
def is_passed_on() -> None:
    """Keys and values go round; nothing is gathered."""
    mesh = distributed.make_mesh(model=8)
    parts = [distributed.distribute_tensor(torch.randn(2, 2, 64, 8), mesh, {"model": Shard(2)}) for _ in range(3)]
    found = distributed.collectives(lambda *x: distributed.context_parallel_attention(*x, mesh), *parts)
    assert {kind for kind, traffic in found.items() if traffic.number} == {"collective-permute"}


@PROGRAMS
def in_bfloat16() -> None:
    mesh = distributed.make_mesh(model=8)
    data = [torch.randn(2, 2, 16, 8).bfloat16() for _ in range(3)]
    found = distributed.context_parallel_attention(*(x.to("jax") for x in data), mesh, scale=0.5)
    assert found.dtype is torch.bfloat16
    expected = F.scaled_dot_product_attention(*(x.float() for x in data), scale=0.5)
    torch.testing.assert_close(found.cpu().float(), expected, rtol=2e-2, atol=1e-2)  # bfloat16 has 8 bits


@PROGRAMS
def refused() -> None:
    mesh = distributed.make_mesh(model=8)
    x = torch.ones(1, 2, 12, 4, device="jax")
    with pytest.raises(UnsupportedInputError, match="of size 8 divides"):
        distributed.context_parallel_attention(x, x, x, mesh)
    with pytest.raises(UnsupportedInputError, match="an axis of the mesh"):
        distributed.context_parallel_attention(x, x, x, mesh, "sequence")
