"""Sampling at the points of a grid with channels as rows, as programs for a CPU do it, against ATen."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional as F

import jaten_ops  # noqa: F401  # registers the backend
from jaten_ops.kernels.grid_sampler import grid_sampler

from ..harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

MODES = ["bilinear", "nearest", "bicubic"]
PADDINGS = ["zeros", "border", "reflection"]
SHAPES = {"few channels": (2, 3, 5, 7), "rows": (2, 9, 5, 7), "volumes": (1, 8, 3, 4, 5)}


def _operands(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    grid = torch.rand(shape[0], *[4] * (len(shape) - 2), len(shape) - 2, generator=generator) * 3 - 1.5
    return torch.randn(shape, generator=generator).to(dtype), grid.to(dtype)


def _sample(image: torch.Tensor, grid: torch.Tensor, mode: str, padding: str, corners: bool) -> torch.Tensor:
    return F.grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=corners)


def _results(call, operands, *settings) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in operands]
    out = call(*leaves, *settings)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out, *torch.autograd.grad(out, leaves, cotangent)]


@pytest.mark.parametrize(("shape", "mode", "padding", "corners"), crossed(SHAPES, MODES, PADDINGS, [False, True]))
def test_results_and_gradients(shape: str, mode: str, padding: str, corners: bool) -> None:
    if mode == "bicubic" and shape == "volumes":
        pytest.skip("ATen has no cubic interpolation of volumes")
    settings = mode, padding, corners
    found = _results(torch.compile(_sample, backend="jaten"), _operands(SHAPES[shape]), *settings)
    expected = _results(_sample, _operands(SHAPES[shape], torch.float64), *settings)
    for mine, exact in zip(found, expected, strict=True):
        # positions are rounded to float32: a part in ten million of the image, whose slope is some units a pixel
        torch.testing.assert_close(mine, exact.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_pixels_that_are_not_read_do_not_count(mode: str) -> None:
    """The first pixel stands in for those outside of the image: an infinity there must not reach other points."""
    image, grid = _operands(SHAPES["rows"])
    image[:, :, 0, 0] = math.inf
    grid[:, 0] = 1.4  # beyond the far border
    settings = mode, "zeros", False
    found = _results(torch.compile(_sample, backend="jaten"), (image.clone(), grid.clone()), *settings)
    expected = _results(_sample, (image, grid), *settings)
    for mine, atens in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, atens, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_points_outside_of_the_image_do_not_count(mode: str) -> None:
    grads = []
    for call in (torch.compile(_sample, backend="jaten"), _sample):
        image, grid = _operands(SHAPES["rows"])
        grid[:, 0] = 3.0  # beyond the far border, with all that is read beside them
        out = call(image.requires_grad_(), grid, mode, "zeros", False)
        cotangent = torch.ones_like(out)
        cotangent[:, :, 0] = math.nan
        grads.append(torch.autograd.grad(out, image, cotangent)[0])
    assert grads[1].isfinite().all()
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mode", "padding", "channels"), crossed(["bilinear", "nearest"], PADDINGS, [2, 9]))
def test_points_of_volumes_that_are_not_finite(mode: str, padding: str, channels: int) -> None:
    image, grid = _operands((1, channels, 3, 4, 5))
    grid[0, 0, 0, 0, 0], grid[0, 0, 0, 1, 1], grid[0, 0, 0, 2, 2], grid[0, 1, 0] = math.inf, -math.inf, math.nan, 1e9
    settings = mode, padding, True
    if padding == "zeros":
        mine, atens = (_results(_sample, (image.to(d), grid.to(d)), *settings) for d in ("jax", "cpu"))
    else:  # ATen's gradient at NaN reads memory of others
        mine, atens = ([_sample(image.to(d), grid.to(d), *settings)] for d in ("jax", "cpu"))
    torch.testing.assert_close([x.cpu() for x in mine], atens, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_only_programs_for_a_cpu_have_rows() -> None:
    image, grid = (jnp.asarray(x.numpy()) for x in _operands(SHAPES["rows"]))
    traced = jax.jit(grid_sampler, static_argnums=(2, 3, 4)).trace(image, grid, 0, 0, False)
    texts = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda", "tpu")}
    assert {p: "optimization_barrier" in text for p, text in texts.items()} == {
        "cpu": True,
        "cuda": False,
        "tpu": False,
    }
