"""The programs that XLA compiles within a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from jaten_ops.xla import executables


@contextlib.contextmanager
def programs() -> Iterator[list[str]]:
    """Fills a list with the text of each program that XLA has compiled, optimized, within the block."""
    texts: list[str] = []
    compiled = executables.compiled

    def noticed(lowered: Any) -> Any:
        found = compiled(lowered)
        texts.append(found[0].as_text() or "")
        return found

    with mock.patch.object(executables, "compiled", noticed):
        yield texts
