"""The models of `models.py`, exported for three platforms at once, give what torch gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import jaten_ops
from jaten_ops.errors import UnsupportedInputError

from ..programs.models import BY_NAME


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.sampled(13)
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


# target: its kernel, which gives another value than ATen's, and a call
OVERRIDDEN: dict[str, tuple[Any, Any]] = {
    "gelu": (lambda self, *, approximate="none": self * 7, lambda x: F.gelu(x)),
    "add.Tensor": (lambda self, other, *, alpha=1: self - other, lambda x: x + x * 3),
    "layer_norm": (lambda x, shape, weight, bias, eps, cudnn: x * 5, lambda x: F.layer_norm(x, (3,))),
    "linear": (lambda x, weight, bias: x @ weight.T * 2, lambda x: F.linear(x, torch.eye(3))),
    "cross_entropy": (lambda input, target, *rest: input.sum(), lambda x: F.cross_entropy(x, x.softmax(-1))),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", OVERRIDDEN)
def test_overrides_that_are_active_are_exported(target: str) -> None:
    kernel, call = OVERRIDDEN[target]
    x = torch.rand(2, 3)
    with jaten_ops.override(target, kernel=kernel):
        expected = torch.compile(call, backend="jaten")(x)
        for shapes in (None, ({0: torch.export.Dim("n")},)):
            exported = jaten_ops.export(call, (x,), dynamic_shapes=shapes)
            torch.testing.assert_close(exported.call(x), expected)
    assert not torch.allclose(jaten_ops.export(call, (x,)).call(x), expected)
