"""Programs with open sizes that are traced in the forms for a CPU, since they run nowhere else."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_wanted: contextvars.ContextVar[bool] = contextvars.ContextVar("wanted", default=False)


def are_wanted() -> bool:
    """True in `in_cpu_forms`."""
    return _wanted.get()


@contextlib.contextmanager
def in_cpu_forms() -> Iterator[None]:
    """A context in which operands with open sizes get the forms for a CPU; those may raise any error for such sizes."""
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)
