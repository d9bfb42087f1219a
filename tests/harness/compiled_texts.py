"""The programs that XLA compiles within a block."""

from __future__ import annotations

import contextlib
import os
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

    # what is loaded from the disk has no text
    with mock.patch.object(executables, "compiled", noticed), mock.patch.dict(os.environ, {"JATEN_CACHE": "0"}):
        yield texts
