"""The executables of single kernels: compiled with jaten's options, and kept for the next process.

`jax.jit` compiles them when they are called, so this is done where JAX calls XLA: for programs that have the name of
one of jaten's kernels. What no option of a program can say XLA is told here of whole graphs, too, and of nothing else.
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

from ..hooks.ledger import replace
from . import disk_store, fingerprint, jitted
from .compiler_options import keeps_loops, known, without_unrolling

compilation_cache: Any
try:
    # private: nothing public is told of a compile
    from jax._src import compilation_cache, compiler  # noqa: F401  # the latter is the ledger's
except ImportError:  # pragma: no cover  # a JAX that has moved them: the ledger says so
    compilation_cache = None

_NAME = f"jit_{jitted.PREFIX}"

_log = logging.getLogger(__name__)


def _watched(compile_program: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's function that has XLA compile a program, for programs of ours after a look on the disk."""

    @functools.wraps(compile_program)
    def compile_or_load(backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
        if keeps_loops():
            options = without_unrolling(options, backend.platform)
        if _is_ours(module):
            _make_room()
            options.env_option_overrides = [*options.env_option_overrides, *known(backend.platform).items()]
        key = None if callbacks else _key(backend, module, devices, options)
        found = None if key is None else _load(backend, key, devices, options)
        if found is None:
            found = compile_program(backend, module, devices, options, callbacks)
            if key is not None:
                _keep(found, key)
        return found

    return compile_or_load


def _most() -> int:
    """The largest number of kernels' executables in memory: a quarter of it, and of a process's memory regions."""
    regions = Path("/proc/sys/vm/max_map_count")
    if not regions.exists():  # not Linux, and not known
        return sys.maxsize
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(memory // 4 // _BYTES, int(regions.read_text()) // 4 // _REGIONS)


# What an executable of XLA's CPU takes, however small it is: 1.3 to 1.5 MB and 2.7 regions with JAX 0.10.
_BYTES, _REGIONS = 1536 * 1024, 3
_MOST = _most()
_made = 0


def _make_room() -> None:
    """Has JAX forget all executables of jaten's functions once there are too many.

    Shapes that change all the time compile kernel after kernel, and JAX keeps each: in the end the process would die.
    Those that are in use are found on the disk again, and whoever holds one, as a compiled graph does, keeps it.
    """
    global _made
    _made += 1
    if _made > _MOST:
        _made = 0
        _log.info("%d executables of kernels are in memory: they are dropped, and found on the disk if need be", _MOST)
        jitted.forget()


def _is_ours(module: Any) -> bool:
    return module.operation.attributes["sym_name"].value.startswith(_NAME)


def _key(backend: Any, module: Any, devices: Any, options: Any) -> str | None:
    if not _is_ours(module) or disk_store.folder() is None or len(devices) != 1:
        return None
    try:
        place = fingerprint.of_device(next(iter(devices)))
        # the key of JAX's own cache, in which all is that decides an executable, but the instructions of the CPU
        return None if place is None else disk_store.key_of(
            "kernel", place, compilation_cache.get_cache_key(module, np.array(list(devices)), options, backend)
        )  # fmt: skip
    except Exception as error:  # it is private: a JAX that has changed it compiles as if there were no disk
        _log.info("a kernel is not kept: %s", error)
        return None


def _load(backend: Any, key: str, devices: Any, options: Any) -> Any:
    content = disk_store.read(key)
    if content is None:
        return None
    try:
        return backend.deserialize_executable(content, devices, options)
    except Exception as error:  # whatever XLA raises for one that it cannot take
        _log.info("%s cannot be loaded: %s", key, error)
        disk_store.forget(key)
        return None


def _keep(executable: Any, key: str) -> None:
    try:
        content = executable.serialize()
    except Exception as error:  # there are some that cannot be, and no list of them
        _log.info("a kernel is not kept: %s", error)
    else:
        disk_store.write(key, content)


IS_KNOWN = replace("jax._src.compiler:backend_compile_and_load", _watched)
"""True if this JAX has the function in the form that is expected here."""
