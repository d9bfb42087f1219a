"""AOTAutograd's cache of captured graphs, whose entries lie in jaten's folder while a program is compiled by jaten.

Elsewhere the cache is as it was.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from ..xla import disk_store
from ..xla.disk_cache import DiskCache

CACHE = DiskCache("capture")


class _Lookup(NamedTuple):
    """A look into the cache. torch's functions, in which it is made, have no argument by which it could be passed.

    Attributes:
        prefix: of the keys.
        found: is told of what is found.
    """

    prefix: str
    found: Callable[[Any], None]


_lookup: ContextVar[_Lookup | None] = ContextVar("lookup", default=None)


@contextlib.contextmanager
def in_folder(prefix: str, found: Callable[[Any], None]) -> Iterator[None]:
    """For the length of a block the cache looks in jaten's folder, and only there.

    Args:
        prefix: of its keys.
        found: is told of what is found (see `tell`).
    """
    token = _lookup.set(_Lookup(prefix, found))
    try:
        yield
    finally:
        _lookup.reset(token)


def tell(value: Any) -> None:
    """Called by an entry that was found: tells whoever looked for it."""
    lookup = _lookup.get()
    if lookup is not None:
        lookup.found(value)


def _under(lookup: _Lookup, key: str) -> str:
    return disk_store.key_of(lookup.prefix, key)


def finding(candidates: Any) -> Any:
    """`AOTAutogradCache.iterate_over_candidates`, which yields what is kept under a key."""

    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
        lookup = _lookup.get()
        if lookup is None:
            yield from candidates(cls, local, remote_cache, key)
        elif (found := CACHE.lookup(_under(lookup, key), lambda content: (pickle.loads(content), content))) is not None:
            yield *found, True

    return iterate_over_candidates


def writing(write: Any) -> Any:
    """`AOTAutogradCache._write_to_local_cache`."""

    def write_to_local_cache(key: str, content: bytes) -> None:
        lookup = _lookup.get()
        if lookup is None:
            write(key, content)
        else:
            CACHE.store(_under(lookup, key), lambda: content)

    return write_to_local_cache


def describing(describe: Any) -> Any:
    """`FxGraphHashDetails.__init__`, of which keys are made.

    Without Inductor's settings, which decide nothing here and take seconds to import.
    """

    def details(self: Any, gm: Any, example_inputs: Any, *others: Any) -> None:
        if _lookup.get() is None:
            describe(self, gm, example_inputs, *others)
        else:
            self.gm, self.example_inputs = gm, list(example_inputs)

    return details
