"""Parts of tensors over a mesh of eight devices, and whole ones, beside and within programs."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import torch
from jax.sharding import PartitionSpec as P
from torch import Tensor

import jaten_ops
from jaten_ops.arrays import bridge

from .mesh_programs import Programs
from .mesh_tensors import spread

PROGRAMS = Programs()


@PROGRAMS
def local_parts_are_not_gathered() -> None:
    x = torch.randn(8, 8)
    for placements in (P("data", "model"), P("model"), P(None, "data"), P(("data", "model")), None):
        ours = spread(x, placements).requires_grad_()
        with mock.patch.object(bridge, "gathered", side_effect=AssertionError):
            part = ours.to_local()
            (grown,) = torch.autograd.grad(part.square().sum(), ours, create_graph=True)
            (grown.to_local() * part.detach()).sum().backward()
        index = jaten_ops.to_jax(ours.detach()).addressable_shards[0].index
        assert torch.equal(part.detach().cpu(), x[index]) and len(part.sharding.device_set) == 1
        expected = torch.zeros(8, 8)
        expected[index] = 2 * x[index]
        for gradient in (grown.detach(), ours.grad):
            assert torch.allclose(gradient.cpu(), expected), placements
            assert gradient.sharding.is_equivalent_to(ours.sharding, 2), placements
        copied = copy.deepcopy(ours.to_local().detach())
        ours.to_local().detach()[:2, :1].zero_()  # as in a DTensor's
        x[index][:2, :1] = 0
        copied.add_(1)
        assert torch.equal(ours.detach().cpu(), x) and ours.sharding == spread(x, placements).sharding


@PROGRAMS
def parts_and_whole_tensors_in_programs() -> None:
    weight = spread(torch.ones(8, 4))

    def whole(t: Any) -> Tensor:
        result: Tensor = t.full_tensor().sum() + (t * weight).full_tensor().sum() + weight.full_tensor().sum()
        return result

    for call in (whole, torch.compile(whole, backend="jaten", fullgraph=True), jaten_ops.compile_step(whole)):
        for i in range(4):
            weight.fill_(i)
            assert call(spread(torch.full((8, 4), i + 1.0))).item() == 32 * (i + 1 + (i + 1) * i + i)

    def local(t: Any) -> Tensor:
        result: Tensor = (t * 2).to_local()
        return result

    for call in (torch.compile(local, backend="jaten", fullgraph=True), jaten_ops.compile_step(local)):
        assert torch.equal(jaten_ops.compile_step(local)(torch.ones(2, device="jax")).cpu(), torch.full((2,), 2.0))
        try:
            for _ in range(2):  # the first call of a step runs as it is
                call(weight)
        except RuntimeError as error:
            assert "no local part" in str(error)
        else:
            raise AssertionError("a program had a part of its own")
