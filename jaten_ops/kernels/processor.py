"""What of the processor decides how a kernel is lowered."""

from __future__ import annotations

import functools
from pathlib import Path

_DESCRIPTION = Path("/proc/cpuinfo")


@functools.cache
def multiplies_fast() -> bool:
    """Whether products of matrices take half as long beside other loops as elsewhere: two 512-bit units for them.

    Those are Intel's processors with AVX-512. XLA's own loops have vectors of 256 bits there as well. False where Linux
    does not tell.
    """
    try:
        text = _DESCRIPTION.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "GenuineIntel" in text and " avx512f " in text
