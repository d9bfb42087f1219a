"""Torch modules as modules of flax.nnx, beside plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import jaten_ops

from .programs.trained_network import X, Y, network, torch_training

nnx = pytest.importorskip("flax.nnx", reason="needs flax, of the extra `nnx`")
optax = pytest.importorskip("optax", reason="needs optax, of the extra `test`")


def _loss(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


@nnx.jit
def _step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss, gradients = nnx.value_and_grad(_loss)(model, x, y)
    optimizer.update(model, gradients)
    return loss


def test_training() -> None:
    losses, plain = torch_training()
    model = jaten_ops.nnx.TorchModule(network())
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    np.testing.assert_allclose([_step(model, optimizer, X, Y) for _ in losses], losses, rtol=1e-5)
    trained = {n: t.cpu() for n, t in jaten_ops.from_jax(model.state_dict()).items()}
    torch.testing.assert_close(trained, dict(plain.state_dict()), rtol=1e-4, atol=1e-6)
    model.eval()
    expected = plain.eval()(torch.from_numpy(X)).detach()
    np.testing.assert_allclose(nnx.jit(lambda model, x: model(x))(model, X), expected, rtol=1e-4, atol=1e-6)


class _Around(nnx.Module):
    def __init__(self, module: torch.nn.Module, rngs: Any) -> None:
        self.inner = jaten_ops.nnx.TorchModule(module, rngs)
        self.head = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.inner(x))


@pytest.mark.exhaustive
def test_within_another_module() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Dropout(0.5))
    model = _Around(module, nnx.Rngs(0))
    one, two = model.inner(X), model.inner(X)
    assert not np.array_equal(one, two)  # each call draws from the stream
    gradients = nnx.grad(lambda model: model(X).sum())(model)
    assert {"inner", "head"} == set(gradients) and gradients["inner"]["parameters"]["0.weight"][...].any()
    model.eval()
    assert module.training  # the torch module itself is as it was
    expected = module.eval()(torch.from_numpy(X)).detach()
    np.testing.assert_allclose(model.inner(X), expected, rtol=1e-5, atol=1e-6)


def test_a_random_module_without_keys() -> None:
    with pytest.raises(RuntimeError, match="needs a key"):
        jaten_ops.nnx.TorchModule(torch.nn.Dropout(0.5))(X)
