"""Settings of malloc for the large buffers that XLA's CPU allocates and frees at every call.

glibc maps each buffer of 32 MB or more anew, and returns free memory at the heap's end to the kernel, which clears and
maps every page again at the next call: that takes longer than computing the values. So from the first compile on the
heap keeps its memory, as PyTorch's allocator for CUDA does: a training step of softmax over 8 MB takes a quarter of the
time.
"""

from __future__ import annotations

import ctypes
import functools
import os

# mallopt's parameters, from malloc.h, and their new values, in bytes
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = {_MMAP_THRESHOLD: 2**29, _TRIM_THRESHOLD: 2**30, _TOP_PAD: 2**26}

_SET_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


@functools.cache
def retain() -> bool:
    """Makes the C library keep up to a gigabyte of freed memory; True if it does.

    It does nothing without glibc, if the user has set such a parameter by an environment variable, or with
    JATEN_MALLOC=0.
    """
    chosen = any(name in os.environ for name in _SET_BY_USER) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or os.environ.get("JATEN_MALLOC") == "0":
        return False
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version  # other libraries have another mallopt, or none
        taken = [library.mallopt(parameter, value) for parameter, value in _SETTINGS.items()]
    except (OSError, AttributeError, TypeError):  # pragma: no cover  # not glibc
        return False
    return all(taken)
