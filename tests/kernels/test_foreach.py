"""`_foreach_*` operators on lists of tensors of different shapes and dtypes, compared with ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from jaten_ops.schema import FUNCTIONAL
from tests.harness.recorded import op_of_aten

X, Y, Z = ([torch.tensor(values).view(2, -1), torch.tensor(values[:2], dtype=torch.float64)] for values in (
    [0.25, 0.5, 0.75, 0.875], [0.5, 2.0, 1.5, -0.75], [-1.0, 3.0, 0.25, 0.5],
))  # fmt: skip
MATRICES = [x.view(-1, 2) for x in X]

UNARY = (
    *("_foreach_abs", "_foreach_acos", "_foreach_asin", "_foreach_atan", "_foreach_ceil", "_foreach_clone"),
    *("_foreach_cos", "_foreach_cosh", "_foreach_erf", "_foreach_erfc", "_foreach_exp", "_foreach_expm1"),
    *("_foreach_floor", "_foreach_frac", "_foreach_lgamma", "_foreach_log", "_foreach_log10", "_foreach_log1p"),
    *("_foreach_log2", "_foreach_max", "_foreach_neg", "_foreach_norm.Scalar", "_foreach_powsum.Scalar"),
    *("_foreach_reciprocal", "_foreach_round", "_foreach_rsqrt", "_foreach_sigmoid", "_foreach_sign"),
    *("_foreach_sin", "_foreach_sinh", "_foreach_sqrt", "_foreach_tan", "_foreach_tanh", "_foreach_trunc"),
    "_foreach_zero",
)
LISTS = (
    *("_foreach_add.List", "_foreach_clamp_max.List", "_foreach_clamp_min.List", "_foreach_copy"),
    *("_foreach_div.List", "_foreach_maximum.List", "_foreach_minimum.List", "_foreach_mul.List"),
    *("_foreach_pow.List", "_foreach_sub.List"),
)
SCALAR = (
    *("_foreach_add.Scalar", "_foreach_clamp_max.Scalar", "_foreach_clamp_min.Scalar", "_foreach_div.Scalar"),
    *("_foreach_maximum.Scalar", "_foreach_minimum.Scalar", "_foreach_mul.Scalar", "_foreach_pow.Scalar"),
    "_foreach_sub.Scalar",
)
SCALARS = (
    *("_foreach_add.ScalarList", "_foreach_clamp_max.ScalarList", "_foreach_clamp_min.ScalarList"),
    *("_foreach_div.ScalarList", "_foreach_maximum.ScalarList", "_foreach_minimum.ScalarList"),
    *("_foreach_mul.ScalarList", "_foreach_pow.ScalarList", "_foreach_sub.ScalarList"),
)

CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(UNARY, (X,)),
    **dict.fromkeys(LISTS, (X, Y)),
    **dict.fromkeys(SCALAR, (X, 0.5)),
    **dict.fromkeys(SCALARS, (X, [0.5, 3.0])),
    **dict.fromkeys(("_foreach_add.Tensor", "_foreach_div.Tensor", "_foreach_mul.Tensor"), (X, torch.tensor(2.5))),
    **dict.fromkeys(("_foreach_addcdiv.Scalar", "_foreach_addcmul.Scalar"), (X, Y, Z, 0.5)),
    **dict.fromkeys(("_foreach_addcdiv.ScalarList", "_foreach_addcmul.ScalarList"), (X, Y, Z, [0.5, 3.0])),
    **dict.fromkeys(("_foreach_addcdiv.Tensor", "_foreach_addcmul.Tensor"), (X, Y, Z, torch.tensor([0.5, 3.0]))),
    "_foreach_lerp.List": (X, Y, Z),
    "_foreach_lerp.Scalar": (X, Y, 0.25),
    "_foreach_lerp.ScalarList": (X, Y, [0.25, 0.75]),
    "_foreach_mm": (MATRICES, [m.T.contiguous() for m in MATRICES]),
    "_foreach_pow.ScalarAndTensor": (2.5, Y),
}


def test_every_overload_is_called() -> None:
    assert CALLS.keys() == {name for name in FUNCTIONAL if name.startswith("_foreach_")}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CALLS)
def test_values(name: str) -> None:
    packet, _, suffix = name.partition(".")
    got = getattr(getattr(torch.ops.jaten, packet), suffix or "default")(*CALLS[name])
    expected = op_of_aten(name)(*CALLS[name])
    assert len(got) == len(expected) == 2
    torch.testing.assert_close(got, expected)
