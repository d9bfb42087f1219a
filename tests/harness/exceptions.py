"""Expected failures of the op tests, strict, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

import pytest
import torch


@dataclass(frozen=True)
class Row:
    """A difference from ATen, and the cases with it: "check pattern-of-names", with dtypes if not in all."""

    reason: str
    cases: tuple[str, ...]

    def covers(self, check: str, name: str, dtype: torch.dtype) -> bool:
        for case in self.cases:
            of_check, pattern, *dtypes = case.split(" ")
            if check == of_check and fnmatch(name, pattern):
                return not dtypes or str(dtype).removeprefix("torch.") in dtypes
        return False


ROWS: list[Row] = [
    Row(
        "complex32: JAX has no such dtype, and UnsupportedInputError says so",
        (
            *(
                f"{check} chalf"
                for check in ("values", "gradients", "second", "composite", "extremal", "compiled", "device", "dynamic")
            ),
            *(f"{check} {name} float16" for check in ("values", "device") for name in ("complex", "view_as_complex")),
        ),
    ),
    Row(
        "ATen's gradient is wrong: it fails torch.autograd.gradcheck, jaten's passes",
        ("gradients as_strided_scatter", "second as_strided_scatter"),
    ),
    Row(
        "ATen's second derivative is not that of its first: NaN where its first is a constant 0, 0 for the mean of"
        " nothing, whose tangent is NaN, or cut off from the result",
        (
            *("second linalg.norm.subgradients_at_zero", "second native_layer_norm"),
            *("second var_mean.unbiased", "second std_mean.unbiased"),
        ),
    ),
    Row(
        "ATen's tangent is not the transpose of its gradient: for a direction that is not symmetric, for the triangle"
        " that is not read, for an index that occurs twice or is the padding's, for large values (where it overflows)",
        (
            *("jvp linalg.cholesky*", "jvp triangular_solve", "jvp nn.functional.max_unpool?d"),
            *("jvp nn.functional.embedding", "jvp logcumsumexp"),
        ),
    ),
    Row(
        "ATen gives NaN for entries of 8 and more in half precision; jaten computes in float32",
        ("values matrix_exp bfloat16 float16", "device matrix_exp bfloat16 float16"),
    ),
    Row(
        "what a graph of ATen's operators does not hold: the memory around an input",
        ("compiled as_strided.partial_views",),
    ),
    Row(
        "the sections must be on the CPU, whatever the device: ATen says so",
        ("device tensor_split", "dynamic tensor_split"),
    ),
    Row(
        "how ATen computes shows at the edges: its vectors give NaN where a quotient is too large (the remainder here"
        " is exact), and 0 - x for -x of complex x, as its scalar loops do not; its complex products begin with 1, and"
        " 1 * x is NaN where one part of x is infinite (XLA leaves that factor out)",
        (
            *(f"extremal {name} float32 float64 bfloat16" for name in ("fmod", "remainder", "__rmod__")),
            *(f"extremal {name} complex64" for name in ("neg", "prod", "masked.prod")),
        ),
    ),
    Row(
        "the last digits of integers near 2^63 that cancel: ATen's depend on the order of its lanes",
        ("extremal masked.var int64", "extremal masked.std int64"),
    ),
]


def expected_failure(check: str, name: str, dtype: torch.dtype) -> Row | None:
    """The row for a check of an OpInfo or overload in a dtype."""
    return next((row for row in ROWS if row.covers(check, name, dtype)), None)


def apply(request: pytest.FixtureRequest, check: str, name: str, dtype: torch.dtype) -> None:
    """Marks the running test as an expected failure if a row says so."""
    row = expected_failure(check, name, dtype)
    if row is not None:
        request.applymarker(pytest.mark.xfail(reason=row.reason, strict=True))
