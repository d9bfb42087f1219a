"""Results of calls that run by themselves between executables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from ..harness.paths import compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

POSITIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "of one dimension": lambda x: x[0].nonzero(),
    "of nothing": lambda x: (x > 2).nonzero(),
    "with what is computed of them": lambda x: (p := x.nonzero(), p + 1, x[p[:, 0]]),
    "as a tuple": lambda x: torch.nonzero(x, as_tuple=True),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_lie_as_in_aten(name: str) -> None:
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = tree_leaves(compile_whole(POSITIONS[name])(x))
    expected = tree_leaves(POSITIONS[name](x))
    torch.testing.assert_close(found, expected)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert not found[0]._is_view() or name == "as a tuple"
