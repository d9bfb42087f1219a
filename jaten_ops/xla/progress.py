"""Progress of long compiles: a line at a terminal, or in the log elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator

PATIENCE = 2.0
"""The number of seconds without a message."""

_log = logging.getLogger(__name__)
_CLEARED = "\r\x1b[K"  # overwrites the rest of the line, such as a progress bar


def _say(text: str) -> None:
    """Writes a line to standard error without breaking tqdm's bars; to the log if that is not a terminal."""
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
    """A context that reports, if it takes long, that `what` is being compiled, and when it is done."""
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
