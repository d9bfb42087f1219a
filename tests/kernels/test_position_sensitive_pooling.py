"""Kernels of torchvision's position-sensitive pooling, without torchvision: against the pooling of all channels."""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.kernels import detection, position_sensitive_pooling
from jaten_ops.xla.x64 import Enabled

from ..harness.regions_of_interest import regions

RNG = np.random.default_rng(0)
OUT, POOLED, SCALE = 2, (3, 2), 0.75
SHAPE = (2, OUT * POOLED[0] * POOLED[1], 7, 9)
READ = np.arange(SHAPE[1]).reshape(OUT, *POOLED)  # the channel that each bin of each channel reads


@pytest.mark.parametrize("ratio", [2, -1])
def test_bins_average_points_of_their_channels(ratio: int) -> None:
    features, rois = RNG.standard_normal(SHAPE), regions(RNG)
    bins = np.ix_(range(POOLED[0]), range(POOLED[1]))
    grad = RNG.standard_normal((len(rois), OUT, *POOLED))
    with Enabled():
        found, mapping = position_sensitive_pooling.ps_roi_align(
            jnp.array(features), jnp.array(rois), SCALE, *POOLED, ratio
        )
        of_all = detection.roi_align(jnp.array(features), jnp.array(rois), SCALE, *POOLED, ratio, True)
        back = position_sensitive_pooling.ps_roi_align_backward(
            jnp.array(grad), jnp.array(rois), mapping, SCALE, *POOLED, ratio, *SHAPE
        )
        to_all = np.zeros((len(rois), SHAPE[1], *POOLED))
        to_all[:, READ, bins[0], bins[1]] = grad
        expected_back = detection.roi_align_backward(
            jnp.array(to_all), jnp.array(rois), SCALE, *POOLED, *SHAPE, ratio, True
        )
    expected = np.asarray(of_all)[:, READ, bins[0], bins[1]]
    if ratio < 0:  # a region without extent has no points, whose mean is no number
        expected = np.where(np.arange(len(rois))[:, None, None, None] == 2, np.nan, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(back, expected_back, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(mapping, np.broadcast_to(READ, (len(rois), *READ.shape)))
    assert mapping.dtype == np.int32


def _window(roi: np.ndarray, p: int, q: int, end: int) -> list[range]:
    """The rows and columns of a bin; `end` is what torchvision's kernel leaves out at the edge of the image."""
    left, top, right, bottom = (math.floor(abs(c * SCALE) + 0.5) * (1 if c > 0 else -1) for c in roi)
    found = []
    for n, bins, start, stop, size in ((p, POOLED[0], top, bottom, SHAPE[2]), (q, POOLED[1], left, right, SHAPE[3])):
        extent = max(stop - start, 1) / bins
        edges = math.floor(n * extent), math.ceil((n + 1) * extent)
        found.append(range(*(min(max(edge + start, 0), size - end) for edge in edges)))
    return found


def test_bins_average_pixels_of_their_channels() -> None:
    features, rois = RNG.standard_normal(SHAPE), regions(RNG)
    grad = RNG.standard_normal((len(rois), OUT, *POOLED))
    expected, expected_back = np.zeros(grad.shape), np.zeros(SHAPE)
    for k, c, p, q in itertools.product(range(len(rois)), range(OUT), *map(range, POOLED)):
        image, channel = int(rois[k, 0]), READ[c, p, q]
        rows, columns = _window(rois[k, 1:], p, q, 1)
        values = [features[image, channel, y, x] for y in rows for x in columns]
        expected[k, c, p, q] = sum(values) / len(values) if values else 0
        rows, columns = _window(rois[k, 1:], p, q, 0)
        for y, x in itertools.product(rows, columns):
            expected_back[image, channel, y, x] += grad[k, c, p, q] / (len(rows) * len(columns))
    with Enabled():
        found, mapping = position_sensitive_pooling.ps_roi_pool(jnp.array(features), jnp.array(rois), SCALE, *POOLED)
        back = position_sensitive_pooling.ps_roi_pool_backward(
            jnp.array(grad), jnp.array(rois), mapping, SCALE, *POOLED, *SHAPE
        )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(back, expected_back, rtol=1e-9, atol=1e-12)
    assert np.any(expected == 0) and np.any(expected_back[:, :, -1] != 0)


@pytest.mark.parametrize("name", ["ps_roi_align", "ps_roi_pool"])
def test_nothing_in_and_wrong_channels(name: str) -> None:
    pool = getattr(position_sensitive_pooling, name)
    more = (2,) if name == "ps_roi_align" else ()
    with Enabled():
        found, mapping = pool(jnp.zeros(SHAPE), jnp.zeros((0, 5)), SCALE, *POOLED, *more)
        assert found.shape == mapping.shape == (0, OUT, *POOLED)
        with pytest.raises(RuntimeError, match="multiple of pooling height"):
            pool(jnp.zeros((2, 7, 3, 3)), jnp.zeros((1, 5)), SCALE, *POOLED, *more)
