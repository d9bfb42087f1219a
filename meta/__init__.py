"""Fake (meta) kernels: the shapes, dtypes and strides of results, without values. Never imports JAX."""

if __name__ != "jaten_ops.meta":
    raise ImportError("this is jaten_ops.meta: import it by that name")

from . import attention, missing, normalization, overrides, result_dtypes, scalars, vendors
from .reuse import as_contiguous, aten_overload, fake_of

__all__ = [
    "as_contiguous",
    "aten_overload",
    "attention",
    "fake_of",
    "missing",
    "normalization",
    "overrides",
    "result_dtypes",
    "scalars",
    "vendors",
]  # fmt: skip
