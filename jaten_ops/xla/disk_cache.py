"""One face of all that is cached on disk: kernels, executables, graphs with their executables, captured graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import jax

from . import disk_store, fingerprint

_log = logging.getLogger(__name__)
V = TypeVar("V")


class DiskCache:
    """The cached objects of one kind: looked up, stored, and forgotten if they cannot be loaded.

    Nothing here raises: what cannot be stored or loaded is made anew; the log of `jaten_ops.xla.disk_cache` says why.

    Args:
        kind: a name for it, part of each key, as "kernel".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def fingerprint(
        self, *parts: str | bytes, device: jax.Device | None = None, of_package: bool = False
    ) -> str | None:
        """The key of what is made of some parts; None if nothing is cached, or if the key cannot be determined.

        Args:
            parts: of what it is made.
            device: for which it is compiled, if that decides.
            of_package: whether the sources of jaten decide.
        """
        if disk_store.folder() is None:
            return None
        known = [fingerprint.of_package()] if of_package else []
        known += [fingerprint.of_device(device)] if device is not None else []
        decided = [part for part in known if part is not None]
        return None if len(decided) < len(known) else disk_store.key_of(self._kind, *decided, *parts)

    def lookup(self, key: str | None, load: Callable[[bytes], V]) -> V | None:
        """The object that a function makes of the bytes stored under a key; None if there are none, or if it raises."""
        content = None if key is None else disk_store.read(key)
        if key is None or content is None:
            return None
        try:
            return load(content)
        except Exception as error:  # whatever JAX, XLA and pickle raise: it is made anew
            _log.info("%s %s cannot be loaded: %s", self._kind, key, error)
            disk_store.forget(key)
            return None

    def store(self, key: str | None, dump: Callable[[], bytes]) -> bool:
        """Stores the bytes that a function makes; False if there is no key, or if it raises."""
        if key is None:
            return False
        try:
            content = dump()
        except Exception as error:  # there is no list of what cannot be serialized
            _log.info("%s is not cached: %s", self._kind, error)
            return False
        disk_store.write(key, content)
        return True
