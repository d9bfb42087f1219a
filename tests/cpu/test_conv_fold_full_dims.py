"""Convolutions whose kernel spans a dimension: ATen's values, and no window slides there."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from jaten_ops.kernels import convolution

from ..harness.comparison import assert_near, in_float64
from ..harness.convolutions import calls_of
from ..harness.crossings import crossed

# input, weight, stride, padding, output padding, transposed, groups;
# the weight's first dimension is the input's channels if transposed
CASES: dict[str, tuple[Any, ...]] = {
    "of words": ((4, 1, 9, 20), (6, 1, 3, 20), (1, 1), (0, 0), (0, 0), False, 1),
    "of the first dimension": ((2, 3, 5, 9), (4, 3, 5, 2), (1, 2), (0, 1), (0, 0), False, 1),
    "of an image": ((3, 4, 5, 6), (7, 4, 5, 6), (2, 3), (0, 0), (0, 0), False, 1),
    "of a volume's depth": ((2, 3, 4, 6, 5), (4, 3, 4, 3, 3), (1, 1, 1), (0, 1, 0), (0, 0, 0), False, 1),
    "of a sequence": ((2, 3, 8), (5, 3, 8), (1,), (0,), (0,), False, 1),
    "in groups": ((2, 4, 3, 7), (6, 2, 3, 3), (1, 1), (0, 0), (0, 0), False, 2),
    "with a kernel for each channel": ((2, 4, 3, 4), (4, 1, 3, 4), (1, 1), (0, 0), (0, 0), False, 4),
    "transposed": ((2, 4, 1, 1), (4, 3, 5, 6), (1, 1), (0, 0), (0, 0), True, 1),
    "transposed, in groups": ((2, 4, 1, 3), (4, 3, 4, 2), (1, 2), (0, 0), (0, 1), True, 2),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "dtype"), crossed(CASES, [torch.float64, torch.float32, torch.bfloat16]))
def test_values_and_gradients(case: str, dtype: torch.dtype) -> None:
    image, kernel, stride, padding, output_padding, transposed, groups = CASES[case]
    torch.manual_seed(0)
    x, weight = torch.randn(image, dtype=dtype), torch.randn(kernel, dtype=dtype)
    settings = (stride, padding, (1,) * len(stride), transposed, output_padding, groups)
    expected = torch.ops.aten.convolution(x, weight, None, *settings)
    grad = torch.randn_like(expected)
    for name, arguments in {
        "convolution": (x, weight, None, *settings),
        "convolution_backward": (grad, x, weight, [grad.shape[1]], *settings, (True, True, True)),
    }.items():
        aten, jaten = (getattr(namespace, name) for namespace in (torch.ops.aten, torch.ops.jaten))
        # ATen's own sums of bfloat16 depend on the processor's instructions
        assert_near(jaten(*arguments), aten(*arguments), functools.partial(in_float64, aten, arguments, {}))


def test_no_window_slides_over_what_the_kernel_spans() -> None:
    x, weight = jnp.ones((4, 1, 9, 20)), jnp.ones((6, 1, 3, 20))
    settings = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)

    def every(x: Any, weight: Any) -> Any:
        grad = convolution.convolution(x, weight, None, *settings)
        return convolution.convolution_backward(grad, x, weight, None, *settings, (True, True, False))

    calls = calls_of(jax.make_jaxpr(every)(x, weight).jaxpr)
    assert [call.windows.kernel for call in calls] == [(3,)] * 3
