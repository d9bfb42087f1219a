"""Expected failures of the op tests, strict, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

import pytest
import torch


@dataclass(frozen=True)
class Row:
    """A check that fails for the OpInfos that match, in the given dtypes (all if empty)."""

    check: str
    name: str
    reason: str
    dtypes: tuple[torch.dtype, ...] = ()


_COMPLEX32 = "complex32: JAX has no such dtype, and UnsupportedInputError says so"

ROWS: list[Row] = [
    Row("values", "chalf", _COMPLEX32),
    Row("gradients", "chalf", _COMPLEX32),
    Row("composite", "chalf", _COMPLEX32),
    Row("second", "chalf", _COMPLEX32),
    *(
        Row(check, "as_strided_scatter", "ATen's gradient is wrong: it fails torch.autograd.gradcheck, jaten's passes")
        for check in ("gradients", "second")
    ),
    Row(
        "jvp", "linalg.cholesky*", "ATen's tangent is not the transpose of its gradient if a direction is not symmetric"
    ),
    Row(
        "second",
        "native_layer_norm",
        "without a weight, ATen's gradient of the bias is cut off from that of the result",
    ),
    Row("second", "linalg.norm.subgradients_at_zero", "ATen's is NaN where its own first derivative is a constant 0"),
    Row("jvp", "triangular_solve", "ATen's tangent is wrong: it takes in the triangle that is not read"),
    Row("jvp", "logcumsumexp", "ATen's tangent overflows, or loses half of its digits, for large values"),
    Row(
        "jvp",
        "nn.functional.max_unpool?d",
        "where an index occurs twice, ATen's tangent is not the transpose of its gradient",
    ),
    Row("values", "view_as_complex", _COMPLEX32, (torch.float16,)),
    Row(
        "values",
        "nn.functional.soft_margin_loss",
        "ATen overflows in half precision where jaten computes in float32 and rounds once",
        (torch.float16,),
    ),
    Row("values", "matrix_exp", "ATen's is NaN for entries of 8 and more", (torch.bfloat16, torch.float16)),
    Row("compiled", "nn.functional.linear_cross_entropy.chunked_none", "an operator of torch.nn itself, not of ATen"),
    *(
        Row("errors", name, "an out= form computes before it writes: overlapping memory or a cast does no harm")
        for name in ("complex", "kthvalue", "masked_select", "aminmax", "gather", "index_select", "take", "cat")
    ),
    *(
        Row("errors", name, "the dispatcher finds no kernel for an empty list of tensors")
        for name in ("_chunk_cat", "cat-0=[[]]", "stack-0=[[]]")
    ),
    *(
        Row("extremal", name, "ATen's vectors give NaN where a quotient is too large; the remainder here is exact", ds)
        for name in ("fmod", "remainder", "__rmod__")
        for ds in [(torch.float32, torch.float64, torch.bfloat16)]
    ),
    Row("extremal", "chalf", _COMPLEX32),
    Row("extremal", "masked.var", "a sum in float32 of large terms that cancel", (torch.int64, torch.int32)),
    Row("extremal", "masked.std", "a sum in float32 of large terms that cancel", (torch.int64, torch.int32)),
]


def apply(request: pytest.FixtureRequest, check: str, name: str, dtype: torch.dtype) -> None:
    """Marks the running test as an expected failure if a row says so."""
    for row in ROWS:
        if row.check == check and fnmatch(name, row.name) and (not row.dtypes or dtype in row.dtypes):
            request.applymarker(pytest.mark.xfail(reason=row.reason, strict=True))
