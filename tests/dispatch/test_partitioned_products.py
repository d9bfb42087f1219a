"""Products over a mesh of eight devices: ATen's values, strides and gradients, in every shape that it folds."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..harness.crossings import crossed
from ..programs.mesh_products import CALLS


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "way"), crossed(CALLS, ("eager", "compile")))
def test_a_product_over_a_mesh_is_atens(name: str, way: str) -> None:
    mesh_process.found("products", name, way)
