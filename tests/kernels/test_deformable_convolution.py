"""Kernels of torchvision's deformable convolution, without torchvision: against `grid_sample`, one tap at a time."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaten_ops.kernels import deformable_convolution
from jaten_ops.xla.x64 import Enabled


class Case(NamedTuple):
    """A convolution of 8 channels to 4, with taps (3, 2) over an image of (7, 9)."""

    strides: tuple[int, int] = (1, 1)
    paddings: tuple[int, int] = (0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    offset_groups: int = 1
    use_mask: bool = False
    whole: bool = False  # offsets by whole pixels, where derivatives have two sides

    @property
    def sizes(self) -> tuple[int, ...]:
        """The height and width of the result."""
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(IMAGE, TAPS, self.strides, self.paddings, self.dilations, strict=True)
        )

    def tensors(self) -> list[torch.Tensor]:
        """Input, weight, offset, mask and bias; some taps read far outside of the image."""
        generator = torch.Generator().manual_seed(0)

        def made(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=generator)

        offset = made(2, self.offset_groups * 12, *self.sizes) * 3
        mask = made(2, self.offset_groups * 6, *self.sizes) if self.use_mask else torch.zeros(2, 1).double()
        weight = made(4, CHANNELS // self.groups, *TAPS)
        return [made(2, CHANNELS, *IMAGE), weight, offset.round() if self.whole else offset, mask, made(4)]


IMAGE, TAPS, CHANNELS = (7, 9), (3, 2), 8
CASES = {
    "plain": Case(),
    "strided": Case((2, 1), (1, 2), (1, 1), 2, 4, True),
    "dilated": Case((1, 1), (1, 1), (2, 1), 4, 2, True),
    "whole": Case(whole=True),
}


def _reference(case: Case, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The same by `grid_sample`, which reads zeros outside of the image, too."""
    input, weight, offset, mask, bias = tensors
    share, taps = CHANNELS // case.offset_groups, list(itertools.product(*map(range, TAPS)))
    steps = [torch.arange(n).double() * s - p for n, s, p in zip(case.sizes, case.strides, case.paddings, strict=True)]
    patches = []
    for g, (tap, (i, j)) in itertools.product(range(case.offset_groups), enumerate(taps)):
        at = 2 * (g * len(taps) + tap)
        y = steps[0][:, None] + i * case.dilations[0] + offset[:, at]
        x = steps[1] + j * case.dilations[1] + offset[:, at + 1]
        grid = torch.stack([x * 2 / (IMAGE[1] - 1) - 1, y * 2 / (IMAGE[0] - 1) - 1], -1)
        plane = input[:, g * share : (g + 1) * share]
        found = torch.nn.functional.grid_sample(plane, grid, align_corners=True)
        patches.append(found * mask[:, None, g * len(taps) + tap] if case.use_mask else found)
    columns = torch.stack(patches, 2).unflatten(2, (case.offset_groups, -1))  # one offset group has each channel
    columns = columns.movedim(2, 1).flatten(1, 2).reshape(2, case.groups, -1, len(taps), *case.sizes)
    filters = weight.reshape(case.groups, -1, CHANNELS // case.groups, len(taps))
    return torch.einsum("bgcthw,goct->bgohw", columns, filters).flatten(1, 2) + bias[:, None, None]


def _arguments(case: Case) -> tuple[Any, ...]:
    return *case.strides, *case.paddings, *case.dilations, case.groups, case.offset_groups, case.use_mask


@pytest.mark.parametrize("name", CASES)
def test_taps_are_moved_and_weighted(name: str) -> None:
    case = CASES[name]
    tensors = [t.requires_grad_() for t in case.tensors()]
    expected = _reference(case, tensors)
    cotangent = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    expected_grads = torch.autograd.grad(expected, tensors, cotangent, allow_unused=True)
    forward = jax.jit(lambda *t: deformable_convolution.deform_conv2d(*t, *_arguments(case)))
    backward = jax.jit(lambda *t: deformable_convolution.deform_conv2d_backward(*t, *_arguments(case)))
    with Enabled():
        arrays = [jnp.array(t.detach().numpy()) for t in tensors]
        found, grads = forward(*arrays), backward(jnp.array(cotangent.numpy()), *arrays)
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-9, atol=1e-9)
    for i, (grad, wanted, tensor) in enumerate(zip(grads, expected_grads, tensors, strict=True)):
        if i == 2 and case.whole:
            continue  # rounding in `grid_sample` decides on which side of a pixel a tap is
        np.testing.assert_allclose(grad, torch.zeros_like(tensor) if wanted is None else wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("which", "shape", "message"),
    [
        (1, (4, 7, 3, 2), "channels"),
        (2, (2, 10, 5, 8), r"offset.shape\[1\] is not valid: got: 10 expected: 12"),
        (2, (1, 12, 5, 8), "invalid batch size of offset"),
        (2, (2, 12, 5, 7), "offset output dims"),
        (3, (2, 5, 5, 8), r"mask.shape\[1\] is not valid: got: 5 expected: 6"),
    ],
)
def test_shapes_that_do_not_fit(which: int, shape: tuple[int, ...], message: str) -> None:
    case = Case(use_mask=True)
    arrays = [jnp.zeros(t.shape) for t in case.tensors()]
    arrays[which] = jnp.zeros(shape)
    with pytest.raises(RuntimeError, match=message):
        deformable_convolution.deform_conv2d(*arrays, *_arguments(case))
