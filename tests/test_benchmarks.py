"""The cases of the benchmarks, made smaller: each builds, and its two models agree, in output and gradients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

from benchmarks.models import CASES, Case, decoders, encoders, graph, mobile, recurrent, resnet, small, unet
from benchmarks.models.case import Weights, in_jax_layout, jax_loss, torch_loss

# compiles in a third of the time, and each is called once
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

SMALLER: dict[Any, dict[str, Any]] = {
    decoders: {"VOCABULARY": 300, "DEPTH": 1, "LLAMA_DEPTH": 1, "LENGTH": 12},
    encoders: {"VOCABULARY": 300, "DEPTH": 1, "LENGTH": 12, "VIT_DEPTH": 1, "PIXELS": 64, "VIT_CLASSES": 10},
    graph: {"NODES": 50, "EDGES": 200},
    mobile: {"BLOCKS": mobile.BLOCKS[:4], "LAST": 32, "WIDTHS": (8, 12, 16, 20), "DEPTHS": (1, 1, 1, 1), "CLASSES": 10},
    recurrent: {"LENGTH": 5, "DEPTH": 1, "LSTM_LENGTH": 5, "VOCABULARY": 50},
    resnet: {"WIDTHS": (8, 12, 16, 20), "DEPTH": 1, "CLASSES": 10},
    small: {"MLP_SIZES": (16, 32, 32, 8)},
    unet: {"WIDTHS": (8, 16, 24), "PIXELS": 16},
}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, sizes in SMALLER.items():
        for name, size in sizes.items():
            assert hasattr(module, name)
            monkeypatch.setattr(module, name, size)


def _near(actual: jax.Array, expected: torch.Tensor, what: str, scale: float | None = None) -> None:
    """Up to a share of the largest number, since sums of numbers that cancel have no digits of their own."""
    largest = expected.abs().max().item() if scale is None else scale
    np.testing.assert_allclose(np.asarray(actual), expected.numpy(), rtol=0, atol=2e-5 * largest, err_msg=what)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_inference(case: Case) -> None:
    module, inputs, _ = case.make()
    parameters, buffers, arrays, _ = case.make_jax()

    def infer(weights: Weights, *arrays: jax.Array) -> tuple[jax.Array, Weights]:
        updates: Weights = {}
        return case.jax_model(weights, updates if case.stateful else None, *arrays), updates

    output, updates = jax.jit(infer, compiler_options=FAST)(parameters | buffers, *arrays)
    with torch.no_grad():
        expected = module.eval()(*inputs)
    _near(case.output_of_jax(output), expected, "output")
    written = {n: b for n, b in module.named_buffers() if n in buffers and not np.array_equal(buffers[n], b.numpy())}
    assert written.keys() == updates.keys()
    for name, buffer in written.items():
        _near(updates[name], buffer, name)


TRAINED = {case.jax_model: case for case in CASES.values() if case.target}  # each model once


@pytest.mark.parametrize("case", TRAINED.values(), ids=lambda c: c.name)
def test_training(case: Case) -> None:
    module, inputs, target = case.make()
    parameters, buffers, arrays, goal = case.make_jax()
    assert target is not None and goal is not None

    def loss_of(parameters: Weights) -> tuple[jax.Array, Weights]:
        updates: Weights = {}
        return jax_loss(case.jax_model(parameters | buffers, updates, *arrays), goal), updates

    run = jax.jit(jax.value_and_grad(loss_of, has_aux=True), compiler_options=FAST)
    (loss, updates), gradients = run(parameters)
    expected = torch_loss(module(*inputs), target)
    expected.backward()
    _near(loss, expected.detach(), "loss")
    found = {n: in_jax_layout(module, n, p.grad) for n, p in module.named_parameters() if p.grad is not None}
    assert found.keys() == gradients.keys()
    largest = max(g.abs().max().item() for g in found.values())
    for name, gradient in found.items():
        _near(gradients[name], gradient, name, largest)
    for name, buffer in module.named_buffers():
        if name in updates:
            _near(updates[name], buffer, name, scale=1)  # a mean may be nothing but rounding
