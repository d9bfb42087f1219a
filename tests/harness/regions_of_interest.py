"""Regions of interest, for tests of their pooling."""

from __future__ import annotations

import numpy as np


def regions(rng: np.random.Generator) -> np.ndarray:
    """Regions within and beyond the features, one without extent: rows (image, x1, y1, x2, y2)."""
    rois = rng.uniform(-2, 9, (6, 5))
    rois[:, 3:] = rois[:, 1:3] + rng.uniform(0, 8, (6, 2))
    rois[2, 3:] = rois[2, 1:3]
    rois[:, 0] = [0, 1, 0, 1, 1, 0]
    return rois
