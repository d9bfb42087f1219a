"""AOTAutograd's cache of captured graphs, whose entries lie in jaten's folder while a program is compiled by jaten.

Elsewhere the cache is as it was.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from ..xla import disk_store

_prefix: ContextVar[str | None] = ContextVar("prefix", default=None)
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def in_folder(prefix: str) -> Iterator[None]:
    """For the length of a block the cache looks in jaten's folder, and only there, under a prefix of its keys."""
    token = _prefix.set(prefix)
    try:
        yield
    finally:
        _prefix.reset(token)


def finding(candidates: Any) -> Any:
    """`AOTAutogradCache.iterate_over_candidates`, which yields what is kept under a key."""

    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
        prefix = _prefix.get()
        if prefix is None:
            yield from candidates(cls, local, remote_cache, key)
        elif (found := _read(disk_store.key_of(prefix, key))) is not None:
            yield *found, True

    return iterate_over_candidates


def writing(write: Any) -> Any:
    """`AOTAutogradCache._write_to_local_cache`."""

    def write_to_local_cache(key: str, content: bytes) -> None:
        prefix = _prefix.get()
        if prefix is None:
            write(key, content)
        else:
            disk_store.write(disk_store.key_of(prefix, key), content)

    return write_to_local_cache


def describing(describe: Any) -> Any:
    """`FxGraphHashDetails.__init__`, of which keys are made.

    Without Inductor's settings, which decide nothing here and take seconds to import.
    """

    def details(self: Any, gm: Any, example_inputs: Any, *others: Any) -> None:
        if _prefix.get() is None:
            describe(self, gm, example_inputs, *others)
        else:
            self.gm, self.example_inputs = gm, list(example_inputs)

    return details


def _read(key: str) -> tuple[Any, bytes] | None:
    content = disk_store.read(key)
    if content is None:
        return None
    try:
        return pickle.loads(content), content
    except Exception as error:
        _log.info("%s cannot be loaded: %s", key, error)
        disk_store.forget(key)
        return None
