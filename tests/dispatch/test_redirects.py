"""Overrides in torch's tables: they are there for one thread or for all, and afterwards nothing is left."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import AbstractMesh

import jaten_ops
from jaten_ops import distributed
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


@pytest.mark.sampled(3)
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


@pytest.mark.parametrize("backend", ["aot_eager", "jaten"])
def test_programs_that_are_compiled_after_one_have_gradients(backend: str) -> None:
    op = torch.ops.aten.linear.default
    op._dispatch_cache.clear()  # as in a process that has compiled no program
    override = jaten_ops.override("linear", kernel=lambda input, weight, bias=None: input @ weight.T)
    redirects.need(override.spec)  # as for an override of another thread
    for _ in range(2):
        torch._dynamo.reset()
        model = torch.nn.Linear(4, 4)
        torch.compile(model, backend=backend)(torch.ones(2, 4)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        if redirects._ALL["linear"].is_in:
            redirects.release(override.spec)
            redirects.take_out_unneeded()


def test_an_override_beside_handlers_of_tensors_over_a_mesh() -> None:
    distributed.distribute_batch(torch.ones(8, 4), AbstractMesh((4, 2), ("data", "model")))
    x = torch.ones(2, 4, device="jax")
    override = jaten_ops.override("linear", kernel=lambda input, weight, bias=None: 3 * (input @ weight.T))
    for _ in range(2):
        with override:
            assert F.linear(x, x).tolist() == [[12, 12], [12, 12]]
        assert F.linear(x, x).tolist() == [[4, 4], [4, 4]]
        redirects.take_out_unneeded()
