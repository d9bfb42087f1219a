"""Convolutions on blocks of elements: the values of those on elements, infinities and NaNs where they belong."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaten_ops.cpu import conv_space_to_depth
from jaten_ops.cpu.conv_lowerings import BLOCKS, Way, program_orders
from jaten_ops.cpu.conv_space_to_depth import Blocks, side_by_side
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows

from ..harness.convolutions import PARTS, parts_of

# channels, outputs, image, kernel, stride, padding
CASES = {
    "of a picture": (3, 16, (12, 11), (3, 3), (1, 1), (1, 1)),
    "of a gray picture": (1, 6, (9, 14), (5, 5), (1, 1), (2, 2)),
    "of a large kernel": (1, 4, (13, 13), (7, 5), (1, 1), (3, 0)),
    "with strides": (3, 8, (17, 16), (7, 7), (2, 2), (3, 3)),
    "with two strides": (2, 7, (13, 9), (3, 2), (2, 3), (1, 1)),
    "of patches that overlap": (4, 8, (36, 37), (8, 8), (4, 4), (0, 0)),
    "with few outputs": (12, 6, (10, 9), (3, 3), (1, 1), (0, 1)),
    "of an uneven number of channels": (10, 20, (12, 11), (5, 5), (1, 1), (0, 0)),
    "of a sequence": (2, 8, (21,), (4,), (1,), (2,)),
}


def _operands(case: str) -> tuple[torch.Tensor, torch.Tensor, Windows]:
    channels, outputs, sizes, kernel, stride, padding = CASES[case]
    torch.manual_seed(0)
    image = torch.randn(2, channels, *sizes, dtype=torch.float64)
    weight = torch.randn(outputs, channels, *kernel, dtype=torch.float64)
    return image, weight, Windows(kernel, stride, padding, (1,) * len(kernel), 1)


def _takes(case: str, part: str) -> bool:
    return conv_space_to_depth.blocks_possible(part, _operands(case)[2])


def _computed(part: str, windows: Windows, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor) -> np.ndarray:
    """A part as it is computed on blocks, in the program's order."""
    call = ConvCall(part, windows, () if part == "forward" else tuple(result.shape))
    with jax.enable_x64(True):
        x, y = (jnp.asarray(t.detach().numpy()) for t in (a, b))
        return np.asarray(jax.jit(Way(BLOCKS, last=True).run(call, x, y, program_orders(a.dim())))(x, y))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("case", "part"), [row for row in itertools.product(CASES, PARTS) if _takes(*row)])
def test_parts(case: str, part: str) -> None:
    image, weight, windows = _operands(case)
    a, b, expected = parts_of(image, weight, windows)[part]
    np.testing.assert_allclose(_computed(part, windows, a, b, expected), expected.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("case", CASES)
def test_what_is_not_finite_stays_under_its_windows(case: str, value: float) -> None:
    image, weight, windows = _operands(case)
    image[0, 0, 3], image[1, 0, 4] = value, -value
    a, b, expected = parts_of(image, weight, windows)["forward"]
    assert not expected.isfinite().all()
    np.testing.assert_allclose(_computed("forward", windows, a, b, expected), expected.detach(), rtol=1e-10, atol=1e-10)


def test_cases_are_computed_on_blocks() -> None:
    """Or the tests above would say nothing of them; the gradients by their inputs are, where a stride is 1."""
    for case, (channels, outputs, _, _, stride, _) in CASES.items():
        _, _, windows = _operands(case)
        if max(stride) == 1:
            assert side_by_side(windows, channels, outputs) > 1, case
    assert side_by_side(Windows((3, 3), (1, 1), (1, 1), (1, 1), 1), 64, 64) == 1


@pytest.mark.parametrize("across", [1, 2, 4])
def test_blocks_hold_each_element_once(across: int) -> None:
    blocks = Blocks(Windows((3, 3), (1, 2), (0, 0), (1, 1), 1), (5, 4), across)
    image = np.arange(7 * 9 * 2, dtype="float32").reshape(1, 7, 9, 2) + 1
    found = np.asarray(blocks.image(jnp.asarray(image)))
    assert found.shape[-1] == 2 * across * 2
    assert sorted(found[found > 0]) == sorted(image.flatten())
