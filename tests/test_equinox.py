"""Torch modules as modules of Equinox, beside plain torch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import jaten_ops

from .programs.trained_network import X, Y, network, torch_training

equinox = pytest.importorskip("equinox", reason="needs equinox, of the extra `equinox`")
optax = pytest.importorskip("optax", reason="needs optax, of the extra `test`")

_optimizer = optax.sgd(0.1, momentum=0.9)


def _loss(trained: Any, rest: Any, x: Any, y: Any) -> Any:
    result, model = equinox.combine(trained, rest).updated(x)
    return ((result - y) ** 2).mean(), model.buffers


@equinox.filter_jit
def _step(model: Any, state: Any, x: Any, y: Any) -> Any:
    trained, rest = equinox.partition(model, model.trainable())
    (loss, buffers), gradients = equinox.filter_value_and_grad(_loss, has_aux=True)(trained, rest, x, y)
    updates, state = _optimizer.update(gradients, state)
    model = equinox.apply_updates(equinox.tree_at(lambda m: m.buffers, model, buffers), updates)
    return model, state, loss


@pytest.mark.exhaustive
def test_training() -> None:
    expected, plain = torch_training()
    model = jaten_ops.equinox.TorchModule(network())
    state, losses = _optimizer.init(equinox.filter(model, model.trainable())), []
    for _ in expected:
        model, state, loss = _step(model, state, X, Y)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    trained = {n: t.cpu() for n, t in jaten_ops.from_jax(model.state_dict()).items()}
    torch.testing.assert_close(trained, dict(plain.state_dict()), rtol=1e-4, atol=1e-6)
    inference = equinox.nn.inference_mode(model)
    values = plain.eval()(torch.from_numpy(X)).detach()
    np.testing.assert_allclose(equinox.filter_jit(inference)(X), values, rtol=1e-4, atol=1e-6)


def test_gradients_and_keys() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Dropout(0.5))
    module[0].bias.requires_grad_(False)
    model = jaten_ops.equinox.TorchModule(module)
    key = jax.random.key(0)
    gradients = equinox.filter_grad(lambda model: model(X, key=key).sum())(model)
    assert gradients.parameters["0.weight"].any() and not gradients.buffers["0.bias"].any()
    assert set(jax.tree.leaves(model.trainable())) == {True, False}
    each = equinox.filter_vmap(lambda key: model(X, key=key))(jax.random.split(key, 2))
    assert not np.array_equal(each[0], each[1])
    with pytest.raises(RuntimeError, match="needs a key"):
        model(X)
    assert module.training
