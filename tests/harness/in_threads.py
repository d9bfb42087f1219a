"""A function that runs in several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

THREADS = 6


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """The results of a function for each number, called at the same time in as many threads; raises their errors."""
    start = threading.Barrier(threads)

    def begin(n: int) -> Any:
        start.wait()
        return work(n)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))
