"""Fake (meta) kernels: the shapes, dtypes and strides of results, without values. Never imports JAX."""

if __name__ != "jaten_ops.meta":
    raise ImportError("this is jaten_ops.meta: import it by that name")

from . import attention, missing, normalization, overrides, scalars, vendors
from .reuse import aten_overload, fake_of, row_major

__all__ = [
    "aten_overload", "attention", "fake_of", "missing", "normalization", "overrides", "row_major", "scalars", "vendors",
]  # fmt: skip
