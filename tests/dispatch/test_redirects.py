"""Overrides in torch's tables: they are there for one thread or for all, and afterwards nothing is left."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F

import jaten_ops
from jaten_ops.dispatch import redirects

from ..harness.overridden import factor, scaled

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_override_left")


def test_threads_have_their_own() -> None:
    inside, found = threading.Barrier(2), {}
    compiled = torch.compile(F.relu, backend="jaten")

    def work(name: str, context: Any) -> None:
        with context:
            inside.wait()
            eager = factor()
            inside.wait()
            found[name] = eager, compiled(torch.ones(2))[0].item(), factor()
            inside.wait()

    threads = [
        threading.Thread(target=work, args=args)
        for args in (("with", scaled(3)), ("without", contextlib.nullcontext()))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"with": (3, 3, 3), "without": (1, 1, 1)}


def test_nothing_is_left_in_the_tables_of_torch() -> None:
    op = torch.ops.aten.relu.default
    keys = ("AutogradPrivateUse1", "FuncTorchDynamicLayerFrontMode")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    x = torch.ones(2, device="jax")
    with scaled(3):
        assert all(has("aten::relu", key) for key in keys)
        assert F.relu(torch.ones(2))[0] == 1  # on the CPU, PyTorch's own
        assert torch.vmap(F.relu)(torch.ones(2, 2))[0, 0] == 1
        torch.compile(F.relu, backend="jaten")(torch.ones(2))
    redirects.take_out_unneeded()  # pytest may have threads
    assert not any(has("aten::relu", key) for key in keys)
    assert not any(key.name.startswith("Autograd") for key in op.py_kernels)
    assert F.relu(x)[0].item() == torch.ops.jaten.relu(x)[0].item() == 1


@pytest.mark.parametrize("target", ["log_softmax", "_log_softmax"])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_within_operators_that_are_composed(target: str, device: str) -> None:
    override = jaten_ops.override(target, kernel=lambda self, dim, _: 3 * jax.nn.log_softmax(self, dim))
    x = torch.randn(2, 4, device=device, requires_grad=True)
    classes = torch.tensor([1, 0], device=device)
    expected = F.cross_entropy(x, classes)
    (grad,) = torch.autograd.grad(expected, x)
    with override:
        found = torch.ops.jaten.cross_entropy_loss(x, classes)
        torch.testing.assert_close(found, 3 * expected)
        torch.testing.assert_close(torch.autograd.grad(found, x)[0], 3 * grad)
        assert device == "jax" or torch.equal(F.cross_entropy(x, classes), expected)
