"""Keeps a test process small, since thousands of executables would stay in memory, and the disk as it was."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator

import jax
import pytest
import torch._dynamo

os.environ.setdefault("JATEN_CACHE", "0")  # the user's folder is left alone

_STEP = 1 << 20  # KiB: 1 GiB
_largest = 2 * _STEP


@pytest.fixture(autouse=True)
def _forget_executables() -> Iterator[None]:
    """Drops what has been compiled each time that the process has grown by another GiB."""
    global _largest
    yield
    if (size := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > _largest:
        torch._dynamo.reset()
        jax.clear_caches()
        gc.collect()
        _largest = size + _STEP
