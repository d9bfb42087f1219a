"""Products over a mesh of eight devices: ATen's values, strides and gradients, in every shape that it folds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jaten_ops.dispatch import partitioned_products

from ..harness import mesh_process
from ..harness.crossings import crossed
from ..programs.mesh_products import CALLS


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "way"), crossed(CALLS, ("eager", "compile")))
def test_a_product_over_a_mesh_is_atens(name: str, way: str) -> None:
    mesh_process.found("products", name, way)


@pytest.mark.parametrize("call", [partitioned_products.matmul, partitioned_products.linear])
@pytest.mark.parametrize("at", [0, 1])
def test_none_for_a_tensor_is_refused_as_by_aten(call: Any, at: int) -> None:
    operands: list[Any] = [torch.ones(2, 2, device="jax")] * 2
    operands[at] = None
    with pytest.raises(RuntimeError, match="None"):
        call(*operands)
