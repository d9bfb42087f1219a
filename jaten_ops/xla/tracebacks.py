"""The part of the call stack that JAX keeps with what it makes.

Each executable and each array of JAX keeps the code of the functions under which it was made. A program that Dynamo
has compiled is released with its code. If its executable keeps that code, neither is ever released, nor are the
many pieces of memory that XLA's CPU takes for a large program.
"""

from __future__ import annotations

import contextlib
from typing import Any

try:
    from jaxlib._jax import TracebackScope
except ImportError:  # it has moved: executables are kept
    TracebackScope: Any = contextlib.nullcontext  # type: ignore[no-redef]  # of the same use

__all__ = ["TracebackScope"]
"""A context in which JAX keeps the functions that are called within it alone."""
