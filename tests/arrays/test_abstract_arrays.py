"""Tensors over a mesh that is not there: what they tell, and what they refuse since they have no values."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

import jaten_ops
from jaten_ops import MissingValuesError, distributed
from jaten_ops.arrays import partitioned
from jaten_ops.arrays.placements import Layout, layout_of_text

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)  # JAX 0.12 made Explicit the default


def batch() -> Tensor:
    found: Tensor = distributed.distribute_batch(torch.ones(8, 6), MESH)
    return found


def layer() -> nn.Linear:
    return distributed.fully_shard(nn.Linear(64, 16), MESH)  # type: ignore[return-value]  # the same module


# Each takes the values of a tensor over the mesh.
USES: dict[str, Callable[[], Any]] = {
    "an operator": lambda: batch() * 2,
    "a reduction": lambda: batch().sum(),
    "an operator beside a tensor of a device": lambda: torch.ones(8, 6, device="jax") + batch(),
    "an operator in place": lambda: batch().add_(1),
    "a result with a shape that depends on values": lambda: batch().nonzero(),
    "a comparison": lambda: torch.equal(batch(), batch()),
    "a random operator": lambda: nn.functional.dropout(batch()),
    "a part": lambda: batch()[1:3] + 1,
    "a number": lambda: batch()[0, 0].item(),
    "a condition": lambda: bool(batch()[0, 0]),
    "text": lambda: f"{batch()[0, 0]:.2f}",
    "lists": lambda: batch().tolist(),
    "NumPy": lambda: batch().numpy(force=True),
    "dlpack": lambda: torch.from_dlpack(batch()),
    "a NumPy array of the array": lambda: np.asarray(jaten_ops.to_jax(batch())),
    "the CPU": lambda: batch().cpu(),
    "a copy into another tensor": lambda: torch.ones(8, 6, device="jax").copy_(batch()),
    "all values": lambda: batch().full_tensor(),  # type: ignore[operator]  # a method of tensors of the device
    "a part of a device": lambda: batch().to_local(),  # type: ignore[operator]  # likewise
    "other placements": lambda: batch().redistribute(placements=None),  # type: ignore[operator]  # likewise
    "a mesh of devices": lambda: distributed.distribute_tensor(batch(), distributed.make_mesh(data=-1)),
    "a constraint": lambda: distributed.constrain(torch.ones(8, 6), MESH, {"data": Shard(0)}),
    "a module": lambda: layer()(torch.ones(8, 64, device="jax")),
    "a compiled function": lambda: torch.compile(lambda x: x + 1, backend="jaten")(batch()),
    "a step": lambda: jaten_ops.compile_step(torch.sum)(batch()),
    "its collectives": lambda: distributed.collectives(torch.sum, batch()),
    "a file": lambda: torch.save(layer().state_dict(), io.BytesIO()),
    "a gradient": lambda: batch().requires_grad_().sum().backward(),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("use", USES)
def test_a_use_of_values_is_refused(use: str) -> None:
    with pytest.raises(MissingValuesError, match=r"Fix: .*estimate"):
        USES[use]()


def test_what_is_known_without_values() -> None:
    x = batch()
    assert (x.shape, x.dtype, x.device.type, x.requires_grad) == ((8, 6), torch.float32, "jax", False)
    assert x.placements == (Shard(0), Replicate())  # type: ignore[attr-defined]  # of tensors of the device
    assert "size=(8, 6)" in repr(x) and "Parameter" in repr(layer().weight)
    assert x.detach().t().shape == (6, 8) and x.to("jax") is x
    assert isinstance(layer().bias, nn.Parameter)


def test_copies_have_no_values_either() -> None:
    copied = copy.deepcopy(layer())
    assert copied.weight.placements == (Shard(1), Replicate())  # type: ignore[union-attr,comparison-overlap]  # on the device
    assert "size=(16, 64)" in repr(copied.weight)


def test_values_that_are_loaded_are_dropped() -> None:
    model = layer()
    model.load_state_dict(nn.Linear(64, 16).state_dict())
    assert "size=(16, 64)" in repr(model.weight) and model.weight.placements == (Shard(1), Replicate())  # type: ignore[union-attr,comparison-overlap]  # on the device


def test_layouts_are_text_and_back() -> None:
    layout = Layout(MESH, ((0, ("data",)), (-1, None)), is_open=True)
    assert layout_of_text(layout.text()) == layout


def test_axes_become_auto() -> None:
    explicit = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    assert partitioned.auto_mesh(explicit) == MESH
    x: Any = distributed.distribute_tensor(torch.ones(8), explicit, PartitionSpec("model"))
    assert x.sharding.mesh == MESH
