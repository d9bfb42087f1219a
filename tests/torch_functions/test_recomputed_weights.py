"""Modules that compute weights anew in each call, as functions of JAX: their values, and that nothing traced stays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import jaten_ops


def _old(make: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and much used
            return make(nn.Linear(4, 3))

    return made


MODULES: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: nn.GRU(4, 3),
    "LSTM": lambda: nn.LSTM(4, 3, 2, bidirectional=True),
    "RNN": lambda: nn.RNN(4, 3),
    "weight_norm": _old(nn.utils.weight_norm),
    "spectral_norm": lambda: _old(nn.utils.spectral_norm)().eval(),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(4, 3), "weight", 0.5),
    "within": lambda: nn.Sequential(_old(nn.utils.weight_norm)(), nn.ReLU()),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
}


def _loss(result: Any) -> torch.Tensor:
    first = result[0] if isinstance(result, tuple) else result
    return (first * first).sum()


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_under_jit(name: str, closure: bool) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    x = torch.randn(5, 2, 4)
    wanted = x.clone().requires_grad_()
    _loss(module(wanted)).backward()
    gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}

    module = module.to("jax")
    arrays = {n: jaten_ops.to_jax(t.detach()) for n, t in module.state_dict().items()}
    call = jaten_ops.as_jax(lambda x: _loss(module(x)) if closure else None)
    of_state = jaten_ops.as_jax(lambda state, x: _loss(torch.func.functional_call(module, state, (x,))))
    operand = jaten_ops.to_jax(x.to("jax"))
    if closure:
        got = jax.jit(jax.grad(call))(operand)
    else:
        found, got = jax.jit(jax.grad(of_state, (0, 1)))(arrays, operand)
        for n, gradient in gradients.items():
            torch.testing.assert_close(jaten_ops.from_jax(found[n]).cpu(), gradient, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(jaten_ops.from_jax(got).cpu(), wanted.grad, rtol=1e-4, atol=1e-5)

    again = _loss(module(x.to("jax"))).cpu()  # the module is as it was
    torch.testing.assert_close(again, _loss(module.to("cpu")(x)), rtol=1e-4, atol=1e-5)
