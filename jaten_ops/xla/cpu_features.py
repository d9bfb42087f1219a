"""Properties of the processor that decide how a kernel is lowered."""

from __future__ import annotations

import functools
from pathlib import Path

_DESCRIPTION = Path("/proc/cpuinfo")


@functools.cache
def multiplies_fast() -> bool:
    """True if matrix products are unusually fast compared with other loops: on processors with 512-bit vectors.

    These are Intel's processors with AVX-512, where XLA's own loops still use vectors of 256 bits. False if Linux does
    not report the processor.
    """
    try:
        text = _DESCRIPTION.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "GenuineIntel" in text and " avx512f " in text
