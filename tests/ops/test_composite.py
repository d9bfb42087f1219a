"""ATen's composite operators by their jaten names: values, gradients, writes and views, on PyTorch's own samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from jaten_ops import registry
from jaten_ops.schema import COMPOSITE

from ..harness import exceptions
from ..harness.recorded import recorded_calls
from ..harness.replay import OP_INFOS, samples, supported

PACKETS = {spec.packet for spec in COMPOSITE.values()}
# Vectors are determined up to a sign or phase; the gradient of a sum of squares is not.
UP_TO_SIGN = {"linalg.eigh", "linalg.svd", "svd"}


def _cases() -> list[Any]:
    """Each OpInfo that is a composite, every sixth in the default run."""
    names = [
        n for n, op in OP_INFOS.items() if op.aten_name in PACKETS and n != "to_sparse" and supported(n, torch.float64)
    ]
    return [pytest.param(n, marks=[] if i % 6 == 0 else [pytest.mark.exhaustive], id=n) for i, n in enumerate(names)]


def _run(packet: Any, sample: Any) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The results of a call and the gradients of their sum of squares by the tensors that require them."""
    torch.manual_seed(0)
    leaves: list[torch.Tensor] = []

    def leaf(t: torch.Tensor) -> torch.Tensor:
        own = t.detach().clone().requires_grad_(t.requires_grad)
        leaves.extend([own] if own.requires_grad else [])
        return own

    input, args, kwargs = tree_map_only(torch.Tensor, leaf, (sample.input, sample.args, sample.kwargs))
    results = [r for r in tree_flatten(packet(input, *args, **kwargs))[0] if isinstance(r, torch.Tensor)]
    roots = [(r.abs() ** 2).sum() for r in results if r.requires_grad]
    if not roots or not leaves:
        return results, []
    return results, list(torch.autograd.grad(sum(roots), leaves, allow_unused=True, materialize_grads=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", _cases())
def test_composite(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "composite", name, torch.float64)
    op = OP_INFOS[name]
    theirs, ours = getattr(torch.ops.aten, op.aten_name), getattr(torch.ops.jaten, op.aten_name)
    taken = 0
    for sample in samples(name, torch.float64, op.supports_autograd, 2):
        try:
            expected = _run(theirs, sample)
        except (RuntimeError, TypeError):
            continue  # the OpInfo's function takes other arguments than the operator
        got = _run(ours, sample)
        taken += 1
        if any(registry.SPECS[c.overload].random for c in recorded_calls(name, torch.float64, 2)):
            assert [g.shape for g in got[0]] == [e.shape for e in expected[0]]
            continue
        if name in UP_TO_SIGN:
            got, expected = (([t.abs() for t in results], grads) for results, grads in (got, expected))
        torch.testing.assert_close(got[0], expected[0], equal_nan=True)
        torch.testing.assert_close(got[1], expected[1], equal_nan=True)
    if not taken:
        pytest.skip("none of the samples are calls of the operator itself")
