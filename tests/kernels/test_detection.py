"""Kernels of torchvision's operators for detection, without torchvision: against their definitions in plain loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.kernels import detection
from jaten_ops.xla.x64 import Enabled

from ..harness.regions_of_interest import regions

RNG = np.random.default_rng(0)
SHAPE, POOLED, SCALE = (2, 3, 7, 9), (3, 2), 0.75


def _point(plane: np.ndarray, y: float, x: float) -> dict[tuple[int, int], float]:
    """The pixels that a point is read from, with their weights."""
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return {}
    found: dict[tuple[int, int], float] = {}
    sides = []
    for at, size in ((max(y, 0.0), height), (max(x, 0.0), width)):
        low = min(int(at), size - 1)
        part = at - low if low < size - 1 else 0.0
        sides.append(((low, 1 - part), (min(low + 1, size - 1), part)))
    for (i, of_y), (j, of_x) in itertools.product(*sides):
        found[i, j] = found.get((i, j), 0.0) + of_y * of_x
    return found


def _aligned(features: np.ndarray, rois: np.ndarray, ratio: int, aligned: bool) -> tuple[np.ndarray, np.ndarray]:
    """The means of points, and the gradient of their sum."""
    result, grad = np.zeros((len(rois), SHAPE[1], *POOLED)), np.zeros(features.shape)
    for k, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (c * SCALE - (0.5 if aligned else 0) for c in corners)
        extents = [e if aligned else max(e, 1.0) for e in (bottom - top, right - left)]
        bins = [e / n for e, n in zip(extents, POOLED, strict=True)]
        counts = [ratio if ratio > 0 else math.ceil(b) for b in bins]
        for c, p, q in itertools.product(range(SHAPE[1]), *map(range, POOLED)):
            plane = features[int(image), c]
            for i, j in itertools.product(*map(range, counts)):
                y = top + p * bins[0] + (i + 0.5) * bins[0] / counts[0]
                x = left + q * bins[1] + (j + 0.5) * bins[1] / counts[1]
                for pixel, weight in _point(plane, y, x).items():
                    share = weight / max(counts[0] * counts[1], 1)
                    result[k, c, p, q] += plane[pixel] * share
                    grad[int(image), c][pixel] += share
    return result, grad


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("ratio", "aligned"), [(2, False), (-1, True), (0, False)])
def test_regions_are_averaged(ratio: int, aligned: bool) -> None:
    features, rois = RNG.standard_normal(SHAPE), regions(RNG)
    expected, expected_grad = _aligned(features, rois, ratio, aligned)
    with Enabled():
        found = detection.roi_align(jnp.array(features), jnp.array(rois), SCALE, *POOLED, ratio, aligned)
        ones = jnp.ones(found.shape)
        grad = detection.roi_align_backward(ones, jnp.array(rois), SCALE, *POOLED, *SHAPE, ratio, aligned)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-9, atol=1e-12)


@pytest.mark.exhaustive
def test_maxima_of_regions_and_their_pixels() -> None:
    features, rois = RNG.standard_normal(SHAPE), regions(RNG)
    features[0, 0, 2, 2] = np.nan
    with Enabled():
        values, pixels = detection.roi_pool(jnp.array(features), jnp.array(rois), SCALE, *POOLED)
        grad = detection.roi_pool_backward(jnp.ones(values.shape), jnp.array(rois), pixels, SCALE, *POOLED, *SHAPE)
    expected_grad = np.zeros(SHAPE)
    for k, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (math.floor(abs(c * SCALE) + 0.5) * (1 if c > 0 else -1) for c in corners)
        bins = [max(e + 1, 1) / n for e, n in zip((bottom - top, right - left), POOLED, strict=True)]
        for c, p, q in itertools.product(range(SHAPE[1]), *map(range, POOLED)):
            rows, columns = (
                range(*(min(max(edge + start, 0), size) for edge in (math.floor(n * b), math.ceil((n + 1) * b))))
                for n, b, start, size in ((p, bins[0], top, SHAPE[2]), (q, bins[1], left, SHAPE[3]))
            )
            best: Any = (-np.inf, -1)
            for y, x in itertools.product(rows, columns):
                value = features[int(image), c, y, x]
                best = (value, y * SHAPE[3] + x) if value > best[0] else best
            assert (float(values[k, c, p, q]), int(pixels[k, c, p, q])) == (best if best[1] >= 0 else (0, -1))
            if best[1] >= 0:
                expected_grad[int(image), c].flat[best[1]] += 1
    np.testing.assert_array_equal(grad, expected_grad)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_worse_boxes_are_suppressed(count: int) -> None:
    boxes = RNG.uniform(0, 20, (count, 4)).astype(np.float32)
    boxes[:, 2:] += boxes[:, :2]
    scores = np.round(RNG.uniform(0, 1, count), 1).astype(np.float32)  # ties go by position
    scores[1:2] = np.nan
    boxes[3:4] = np.nan
    found = detection.nms(jnp.array(boxes), jnp.array(scores), 0.3)
    kept: list[int] = []
    for i in sorted(range(count), key=lambda i: -np.inf if np.isnan(scores[i]) else -scores[i]):
        size = np.prod(boxes[i, 2:] - boxes[i, :2])
        for j in kept:
            low, high = np.maximum(boxes[i, :2], boxes[j, :2]), np.minimum(boxes[i, 2:], boxes[j, 2:])
            common = np.prod(np.maximum(high - low, 0))
            if common / (size + np.prod(boxes[j, 2:] - boxes[j, :2]) - common) > 0.3:
                break
        else:
            kept.append(i)
    assert found.tolist() == kept and found.dtype == np.int64


def test_nothing_in() -> None:
    with Enabled():
        rois, features = jnp.zeros((0, 5)), jnp.zeros(SHAPE)
        assert detection.roi_align(features, rois, 1.0, *POOLED, -1, False).shape == (0, SHAPE[1], *POOLED)
        assert [r.shape for r in detection.roi_pool(features, rois, 1.0, *POOLED)] == [(0, SHAPE[1], *POOLED)] * 2
        grad = detection.roi_align_backward(jnp.zeros((0, 3, *POOLED)), rois, 1.0, *POOLED, *SHAPE, 2, False)
        assert grad.shape == SHAPE and not grad.any()
