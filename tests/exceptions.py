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
    Row("values", "view_as_complex", _COMPLEX32, (torch.float16,)),
    Row(
        "values",
        "nn.functional.soft_margin_loss",
        "ATen overflows in half precision where jaten computes in float32 and rounds once",
        (torch.float16,),
    ),
    Row("compiled", "nn.functional.linear_cross_entropy.chunked_none", "an operator of torch.nn itself, not of ATen"),
    *(
        Row("errors", name, "an out= form computes before it writes: overlapping memory or a cast does no harm")
        for name in ("complex", "kthvalue", "masked_select", "aminmax", "gather", "index_select", "take", "cat")
    ),
    *(
        Row("errors", name, "the dispatcher finds no kernel for an empty list of tensors")
        for name in ("_chunk_cat", "cat-0=[[]]", "stack-0=[[]]")
    ),
    Row("errors", "one_hot-0=*", "ATen's composition checks no values of a tensor subclass"),
    Row("gradients", "as_strided_scatter", "the gradient for a 0-d source is not right yet"),
]


def apply(request: pytest.FixtureRequest, check: str, name: str, dtype: torch.dtype) -> None:
    """Marks the running test as an expected failure if a row says so."""
    for row in ROWS:
        if row.check == check and fnmatch(name, row.name) and (not row.dtypes or dtype in row.dtypes):
            request.applymarker(pytest.mark.xfail(reason=row.reason, strict=True))
