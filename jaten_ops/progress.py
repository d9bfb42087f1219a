"""A line for who waits: what is being compiled, if that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

PATIENCE = 2.0
"""For how many seconds nothing is said."""


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Says on standard error that `what` is being compiled, and when it is done, if the block takes long."""
    start = time.monotonic()
    said = threading.Event()

    def say() -> None:
        said.set()
        print(f"jaten: compiling {what} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if said.is_set():
            print(f"jaten: ... after {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
