"""Convolutions by kernels of one element, with channels last."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

from jaten_ops.cpu.conv_lowerings import PRODUCT, Way, usual_orders
from jaten_ops.kernel_base import conv_parts
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows

CHANNELS, OUTPUTS, SIDE = 24, 40, 6


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("part", ["forward", "input_gradient", "weight_gradient"])
def test_weights_are_not_copied_into_another_order(part: str, stride: int) -> None:
    windows = Windows((1, 1), (stride, stride), (0, 0), (1, 1), 1)
    draw = np.random.default_rng(0).standard_normal
    x, weight = draw((2, CHANNELS, SIDE, SIDE), "float32"), draw((OUTPUTS, CHANNELS, 1, 1), "float32")
    grad = draw((2, OUTPUTS, *windows.positions((SIDE, SIDE))), "float32")
    shape = {"forward": (), "input_gradient": x.shape, "weight_gradient": weight.shape}[part]
    a, b = {"forward": (x, weight), "input_gradient": (grad, weight), "weight_gradient": (x, grad)}[part]
    call = ConvCall(part, windows, shape)

    given = usual_orders(call, 4)
    run = jax.jit(Way(PRODUCT, last=True).run(call, a, b, given))
    operands = a.transpose(given.first), b.transpose(given.second)
    compiled = run.lower(*operands).compile()
    expected = np.asarray(conv_parts.compute(call, a, b)).transpose(given.result)
    np.testing.assert_allclose(np.asarray(compiled(*operands)), expected, rtol=1e-5, atol=1e-5)
    if part == "weight_gradient":
        return  # XLA copies it once, in the order that it has
    moved = re.findall(r"f32\[([\d,]+)\]\S* (?:copy|transpose)\(", compiled.as_text())
    assert CHANNELS * OUTPUTS not in [np.prod([int(n) for n in sizes.split(",")]) for sizes in moved]
