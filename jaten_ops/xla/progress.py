"""A line for who waits at a terminal: what is being compiled, if that takes long. Elsewhere it goes to the log."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator

PATIENCE = 2.0
"""For how many seconds nothing is said."""

_log = logging.getLogger(__name__)
_CLEARED = "\r\x1b[K"  # what else stands in the line, as a bar that is drawn anew


def _say(text: str) -> None:
    """Writes a line of its own to standard error, beside the bars of tqdm; to the log where that is no terminal."""
    if not sys.stderr.isatty():
        _log.info(text)
        return
    bars = sys.modules.get("tqdm")
    if bars is not None and hasattr(bars, "tqdm"):
        bars.tqdm.write(text, file=sys.stderr)
    else:
        print(f"{_CLEARED}{text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Says at a terminal, or in the log, that `what` is being compiled, and when it is done, if that takes long."""
    start = time.monotonic()
    said = threading.Event()

    def say() -> None:
        said.set()
        _say(f"jaten: compiling {what} ...")

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if said.is_set():
            _say(f"jaten: ... after {time.monotonic() - start:.1f} s")
