"""Torch modules as functions of their parameters and buffers."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import jaten_ops

from ..programs.trained_network import X, Y, network, torch_training


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(index).tanh())


def test_tied_weights_are_one() -> None:
    torch.manual_seed(0)
    module, index = _Tied(), np.array([1, 4])
    module(torch.from_numpy(index)).square().sum().backward()
    assert module.embedding.weight.grad is not None
    expected = module.embedding.weight.grad.numpy().copy()
    module.to("jax")
    parameters = jaten_ops.to_jax(dict(module.state_dict()))
    f = jaten_ops.as_jax(module)
    gradients = jax.jit(jax.grad(lambda p: jnp.square(f(p, index)).sum()))(parameters)
    assert gradients.keys() == {"embedding.weight", "head.weight"}
    for gradient in gradients.values():  # so that any optimizer leaves them equal
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_frozen_parameters_have_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).to("jax")
    module[0].requires_grad_(False)
    f = jaten_ops.as_jax(module)
    gradients = jax.grad(lambda p: f(p, jnp.ones((2, 3))).sum())(jaten_ops.to_jax(dict(module.state_dict())))
    assert not gradients["0.weight"].any() and gradients["2.weight"].any()


@pytest.mark.parametrize("given", ["all", "parameters"])
def test_updated_buffers_come_out(given: str) -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    module = copy.deepcopy(plain).to("jax")
    x = np.random.default_rng(1).normal(size=(5, 3)).astype("float32")
    expected = plain(torch.from_numpy(x))
    before = {n: b.cpu() for n, b in module.named_buffers()}
    state = dict(module.state_dict() if given == "all" else module.named_parameters())
    result, buffers = jax.jit(jaten_ops.as_jax(module, mutable=True))(jaten_ops.to_jax(state), x)
    np.testing.assert_allclose(result, expected.detach(), rtol=1e-5, atol=1e-6)
    assert buffers.keys() == dict(plain.named_buffers()).keys()
    for name, buffer in plain.named_buffers():
        np.testing.assert_allclose(buffers[name], buffer, rtol=1e-5)
        assert torch.equal(dict(module.named_buffers())[name].cpu(), before[name])  # no tracer, and no update


def test_threads_share_a_module() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to("jax")
    parameters = jaten_ops.to_jax(dict(module.state_dict()))

    def gradient(i: int) -> Any:
        f = jaten_ops.as_jax(module)
        scaled = jax.tree.map(lambda p: p * i, parameters)
        return jax.jit(jax.grad(lambda p: f(p, jnp.ones((2, 3))).sum()))(scaled)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradient, range(8)))
    for i, got in enumerate(found):
        jax.tree.map(np.testing.assert_array_equal, got, gradient(i))
    assert not torch.compiler.is_compiling()


def test_optax_trains_a_module() -> None:
    optax = pytest.importorskip("optax", reason="needs optax, of the extra `test`")
    expected, plain = torch_training()
    module = network().to("jax")
    function, optimizer = jaten_ops.as_jax(module, mutable=True), optax.sgd(0.1, momentum=0.9)
    parameters, buffers = (jaten_ops.to_jax(dict(f())) for f in (module.named_parameters, module.named_buffers))
    state, losses = optimizer.init(parameters), []

    @jax.jit
    def step(parameters: Any, buffers: Any, state: Any) -> Any:
        def loss(parameters: Any) -> Any:
            result, after = function(parameters | buffers, X)
            return jnp.square(result - Y).mean(), after

        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), buffers, state, value

    for _ in expected:
        parameters, buffers, state, loss = step(parameters, buffers, state)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    module.load_state_dict(jaten_ops.from_jax(parameters | buffers))
    torch.testing.assert_close(
        {n: t.cpu() for n, t in module.state_dict().items()}, dict(plain.state_dict()), rtol=1e-4, atol=1e-6
    )


def test_orbax_keeps_a_module(tmp_path: Path) -> None:
    orbax = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, of the extra `test`")
    module = network().to("jax")
    state = jaten_ops.to_jax(dict(module.state_dict()))
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
    with orbax.StandardCheckpointer() as checkpointer, jax.enable_x64(True):  # or int64 comes back as int32
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        found = checkpointer.restore(tmp_path / "state", like)
    for name, array in state.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    module.load_state_dict(jaten_ops.from_jax(found))
