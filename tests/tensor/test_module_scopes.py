"""Module paths in the programs of steps and of torch functions in JAX, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

import jaten_ops


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return torch.utils.checkpoint.checkpoint(self.mlp, x, use_reentrant=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.network = model

    def step(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.network(x).square().mean()
        loss.backward()
        return loss


def _text_of_step(step: Callable[..., Any], x: torch.Tensor) -> str:
    compiled = jaten_ops.compile_step(step)
    compiled(x)
    return compiled.executable_for(x).as_text()


def _of_function(model: nn.Module, x: torch.Tensor) -> str:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return _text_of_step(step, x)


def _as_jax(model: nn.Module, x: torch.Tensor) -> str:
    fn = jaten_ops.as_jax(model)
    state = jaten_ops.to_jax({name: p.detach() for name, p in model.named_parameters()})
    gradient = jax.jit(jax.grad(lambda p, x: (fn(p, x) ** 2).mean()))
    return gradient.lower(state, jaten_ops.to_jax(x)).compile().as_text()


def _as_jax_of_function(model: nn.Module, x: torch.Tensor) -> str:
    fn = jaten_ops.as_jax(lambda x: model(x).square().mean())
    return jax.jit(jax.grad(fn)).lower(jaten_ops.to_jax(x)).compile().as_text()


WAYS: dict[str, tuple[Callable[[nn.Module, torch.Tensor], str], str]] = {
    "step": (_of_function, "model."),
    "method": (lambda model, x: _text_of_step(Trainer(model).step, x), "network."),
    "as_jax": (_as_jax, ""),
    "as_jax of a function": (_as_jax_of_function, "model."),
}
PATHS = ["layers.0.attn", "layers.1.mlp.0"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
def test_operations_have_the_paths_of_their_modules(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "0")  # an executable that is found there has the names of its first program
    run, root = WAYS[way]
    names = set(re.findall(r'op_name="([^"]*)"', run(Model().to("jax"), torch.randn(2, 3, 8, device="jax"))))
    for path in PATHS:
        # of a linear layer, which is one operator in a process that has had tensors over a mesh
        product = re.compile(rf"(/backward)?/{re.escape(root + path)}/jit\(jaten_\w+\)/.*dot_general")
        assert {bool(found[1]) for name in names if (found := product.search(name))} == {False, True}, names
    loose = {n for n in names if "dot_general" in n and not any(p in n for p in ("attn/", "mlp.0/"))}
    assert not loose


def test_nothing_is_left_of_a_scope_after_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(5, 7)

    model = Broken()
    with pytest.raises(RuntimeError, match="invalid for input"):
        jax.jit(jaten_ops.as_jax(lambda x: model(x)))(jax.numpy.ones(3))
    assert "model" not in jax.jit(lambda x: x * 2).lower(jax.numpy.ones(3)).as_text(debug_info=True)
