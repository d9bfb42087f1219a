"""Executables of single kernels: compiled with jaten's options, and cached on disk for the next process.

`jax.jit` compiles them when they are called, so this replaces the function by which JAX calls XLA, for programs that
have the name of one of jaten's kernels. It also passes the settings that JAX has no option for, for kernels and graphs.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..tracing import opaque
from . import disk_store, jitted, onednn
from .compiler_options import keeps_loops, of_kernel, without_unrolling
from .disk_cache import DiskCache

compilation_cache: Any
try:
    # private: there is no public hook for a compile
    from jax._src import compilation_cache, compiler  # noqa: F401  # the latter is patched
except ImportError:  # pragma: no cover  # a JAX that has moved them: its patch is off
    compilation_cache = None

CACHE = DiskCache("kernel")
_NAME = f"jit_{jitted.PREFIX}"

_log = logging.getLogger(__name__)


def watched(compile_program: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's function that compiles a program with XLA; for jaten's programs it first looks on the disk."""

    @opaque
    @functools.wraps(compile_program)
    def compile_or_load(backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
        if keeps_loops():
            options = without_unrolling(options, backend.platform)
        is_kept = not callbacks
        if _is_ours(module):
            _make_room()
            text = str(module)
            options.env_option_overrides = [*options.env_option_overrides, *of_kernel(backend.platform, text).items()]
            is_kept = is_kept and not onednn.is_in(text)
        key = _key(backend, module, devices, options) if is_kept else None
        found = None if key is None else _load(backend, key, devices, options)
        if found is None:
            found = compile_program(backend, module, devices, options, callbacks)
            CACHE.store(key, found.serialize)
        return found

    return compile_or_load


def _most() -> int:
    """The largest number of kernels' executables in memory: a quarter of it, and of a process's memory regions."""
    regions = Path("/proc/sys/vm/max_map_count")
    if not regions.exists():  # not Linux, and not known
        return sys.maxsize
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(memory // 4 // _BYTES, int(regions.read_text()) // 4 // _REGIONS)


# The memory of an executable for a CPU, however small: 1.3 to 1.5 MB and 2.7 regions with JAX 0.10.
_BYTES, _REGIONS = 1536 * 1024, 3
_MOST = _most()
_made = 0


def _make_room() -> None:
    """Clears JAX's executables of jaten's functions once there are too many.

    If shapes change all the time, kernel after kernel is compiled, and JAX keeps all of them until the process runs out
    of memory. Cleared ones that are needed again are loaded from the disk; a compiled graph keeps its own.
    """
    global _made
    _made += 1
    if _made > _MOST:
        _made = 0
        _log.info(
            "%d executables of kernels are in memory: they are cleared, and loaded from the disk if needed", _MOST
        )
        jitted.clear_traces()


def _is_ours(module: Any) -> bool:
    return module.operation.attributes["sym_name"].value.startswith(_NAME)


def _key(backend: Any, module: Any, devices: Any, options: Any) -> str | None:
    if not _is_ours(module) or disk_store.folder() is None or len(devices) != 1:
        return None
    try:
        # the key of JAX's own cache, which covers everything but the instruction sets of the CPU
        key = compilation_cache.get_cache_key(module, np.array(list(devices)), options, backend)
    except Exception as error:  # private: a JAX that has changed it compiles without the disk
        _log.info("a kernel is not cached: %s", error)
        return None
    return CACHE.fingerprint(key, device=next(iter(devices)))


def _load(backend: Any, key: str | None, devices: Any, options: Any) -> Any:
    return CACHE.lookup(key, lambda content: backend.deserialize_executable(content, devices, options))
