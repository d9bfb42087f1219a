"""Properties of the processor that decide how a kernel is lowered."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

_DESCRIPTION = Path("/proc/cpuinfo")
_ZEN_2 = 0x30  # models of AMD's family 23 from this on
_BFLOAT16 = "avx512_bf16", "amx_bf16"  # Linux's names of features


@functools.cache
def multiplies_fast() -> bool:
    """True if matrix products are unusually fast compared with other loops: on processors with 512-bit vectors.

    These are Intel's processors with AVX-512, where XLA's own loops still use vectors of 256 bits. False if Linux does
    not report the processor.
    """
    return "GenuineIntel" in _described() and " avx512f" in _described()


@functools.cache
def halves_vectors() -> bool:
    """True if vectors of 256 bits are computed in two halves, so that products take twice as long as elsewhere.

    These are AMD's Zen and Zen+. False if Linux does not report the processor.
    """
    family, model = (re.search(rf"^{name}\s*: (\d+)$", _described(), re.MULTILINE) for name in ("cpu family", "model"))
    is_zen = "AuthenticAMD" in _described() and family is not None and family[1] == "23"
    return is_zen and model is not None and int(model[1]) < _ZEN_2


@functools.cache
def multiplies_bfloat16() -> bool:
    """True if the processor has instructions for products of bfloat16; False if Linux does not report it."""
    return any(f" {flag}" in _described() for flag in _BFLOAT16)


def cores() -> int:
    """The processor's cores that this process may use now: threads of XLA's pools."""
    known = getattr(os, "sched_getaffinity", None)  # on Linux
    return len(known(0)) if known is not None else os.cpu_count() or 1


def _described() -> str:
    """The processor as Linux reports it; empty if it does not."""
    try:
        return _DESCRIPTION.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
