"""The models of `models.py`, exported for three platforms at once, give what torch gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import jaten_ops
from jaten_ops.errors import UnsupportedInputError

from ..programs.models import BY_NAME


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_model(name: str) -> None:
    case = BY_NAME[name]
    torch.manual_seed(case.seed)
    model, inputs = case.build(0.0).eval(), case.inputs(2)
    exported = jaten_ops.export(model, (), inputs, platforms=("cpu", "cuda", "tpu"))
    with torch.no_grad():
        expected = _tensors(model(**inputs))
    for one, other in zip(_tensors(exported.call(**inputs)), expected, strict=True):
        largest = other.abs().max().item() if other.is_floating_point() else 0.0
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * largest)


def test_a_function_may_read_a_module_of_the_device() -> None:
    module = torch.nn.Linear(3, 3).to("jax")
    module.tied = module.weight  # type: ignore[assignment]  # any name will do
    before = dict(module.named_parameters())
    x = torch.randn(2, 3)
    exported = jaten_ops.export(lambda x: module(x).relu() @ module.tied, (x,))
    torch.testing.assert_close(exported.call(x), (module(x.to("jax")).relu() @ module.tied).cpu())
    assert len(exported.signature["state"]) == 2 and all(p is before[n] for n, p in module.named_parameters())
    tensor = module.weight.detach()
    with pytest.raises(UnsupportedInputError, match=r"reads a tensor of the device .* a module that holds the tensor"):
        jaten_ops.export(lambda x: x @ tensor, (x,))
