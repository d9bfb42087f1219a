"""Results of random operators are saved for the backward, not drawn again."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

from ...harness.passes import watched


@pytest.mark.usefixtures("fresh_dynamo")
def test_they_are_to_be_saved() -> None:
    saved: list[list[str]] = []

    def told(gm: torch.fx.GraphModule) -> None:
        policies = {node.name: node.meta.get("recompute") for node in gm.graph.nodes}
        saved.append([name for name, policy in policies.items() if policy is CheckpointPolicy.MUST_SAVE])

    with watched("random_results", told):
        x = torch.ones(8, requires_grad=True)
        y = torch.compile(lambda x: torch.nn.functional.dropout(x.sin()).cos(), backend="jaten")(x)
        y.sum().backward()
    assert saved == [["getitem", "getitem_1"]]
    kept = x.grad != 0
    assert torch.equal(y.detach() == 1, ~kept)  # the same elements are dropped in both
