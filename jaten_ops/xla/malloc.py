"""Settings of malloc for the large buffers that XLA's CPU allocates and frees at every call.

glibc maps each anew from 32 MB on, and below that returns what lies free at the heap's end: then the kernel clears and
maps every page again at the next call, which takes longer than to compute what is written there. So at the first
compile the heap is told to keep what it has had, as PyTorch's allocator for CUDA does: a training step of softmax over
8 MB takes a quarter of the time.
"""

from __future__ import annotations

import ctypes
import functools
import os

# mallopt's parameters, from malloc.h, and what they are set to, in bytes
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = {_MMAP_THRESHOLD: 2**29, _TRIM_THRESHOLD: 2**30, _TOP_PAD: 2**26}

_SET_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


@functools.cache
def retain() -> bool:
    """Has the C library keep up to a gigabyte of freed memory; says whether it does.

    Not with another library than glibc, if the user has set any of this by environment variables, or JATEN_MALLOC=0.
    """
    chosen = any(name in os.environ for name in _SET_BY_USER) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or os.environ.get("JATEN_MALLOC") == "0":
        return False
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version  # others have a mallopt that means something else, or none
        taken = [library.mallopt(parameter, value) for parameter, value in _SETTINGS.items()]
    except (OSError, AttributeError, TypeError):  # pragma: no cover  # not glibc
        return False
    return all(taken)
