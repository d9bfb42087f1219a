"""Comparison of jaten's results with ATen's: values, dtype and shape, with the exceptions in tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten, tree_map_only

from jaten_ops.schema import FUNCTIONAL

# Values are undefined: only dtype and shape are compared.
UNINITIALIZED = frozenset(
    {"empty.memory_format", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize"}
)

# overload, or overload and dtype: (rtol, atol, reason), in place of the defaults of torch.testing for a dtype
TOLERANCES: dict[str | tuple[str, torch.dtype], tuple[float, float, str]] = {
    **{
        (overload, torch.complex64): (2e-6, 1e-4, "a sum of products of the order of 1000, in another order")
        for overload in ("baddbmm", "mv", "vdot", "dot", "mm", "bmm", "addmm", "addbmm", "addmv")
    },
    **{
        (overload, torch.float32): (2e-6, 1e-4, "sums of up to 20,000 products of the order of 50, in another order")
        for overload in ("convolution", "convolution_backward")
    },
    **{
        ("linalg_matrix_exp", dtype): (1e-5, 1e-5, "repeated squaring: ATen's own error is up to 4e-6 of the norm")
        for dtype in (torch.float32, torch.complex64)
    },
}


def in_float64(func: Any, args: Any, kwargs: Any) -> Any:
    """The results of an ATen call in double precision, which both implementations approximate."""
    wider = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
    wider[torch.complex64] = torch.complex128
    args, kwargs = tree_map_only(torch.Tensor, lambda t: t.detach().to(wider.get(t.dtype, t.dtype)), (args, kwargs))
    return func(*args, **{k: wider.get(v, v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()})


def _as_accurate(got: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> bool:
    """True if a float32 or narrower result is as accurate as ATen's, to a factor of 2 and one rounding.

    A rounding error goes with the size of what is summed, not with that of the sum, so two right answers may differ
    by more than the tolerance of a dtype where terms cancel.
    """
    if got.dtype == exact.dtype or not (got.is_floating_point() or got.is_complex()):
        return False
    finite = expected.isfinite()
    if not torch.equal(finite, got.isfinite()) or not exact[finite].isfinite().all():
        return False
    assert_close(got[~finite], expected[~finite], equal_nan=True)
    size = exact[finite].abs().max()
    errors = [(t[finite].to(exact.dtype) - exact[finite]).abs().max() for t in (got, expected)]
    return bool(errors[0] <= 2 * errors[1] + torch.finfo(got.dtype).eps * size)


def assert_same(overload: str, got: Any, expected: Any, args: Any = (), exact: Callable[[], Any] | None = None) -> None:
    """Raises AssertionError unless jaten's results are ATen's.

    `exact` computes the results in double precision; it is called if they differ by more than the dtype's tolerance.
    """
    if isinstance(expected, list | tuple):
        assert isinstance(got, list | tuple), f"got {type(got)}, expected {type(expected)}"
        assert len(got) == len(expected), f"got {len(got)} results, expected {len(expected)}"
        for i, (g, e) in enumerate(zip(got, expected, strict=True)):
            if (overload, i) not in UNSPECIFIED:
                assert_same(overload, g, e, args, exact and (lambda i=i: exact()[i]))
        return
    if not isinstance(expected, torch.Tensor):
        assert type(got) is type(expected), f"got {type(got)}, expected {type(expected)}"
        assert got == expected or (got != got and expected != expected), f"got {got}, expected {expected}"
        return
    assert got.dtype == expected.dtype, f"dtype: got {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"shape: got {tuple(got.shape)}, expected {tuple(expected.shape)}"
    if overload in UNINITIALIZED or FUNCTIONAL[overload].random:
        return
    rtol, atol, _ = TOLERANCES.get((overload, got.dtype)) or TOLERANCES.get(overload, (None, None, ""))
    if expected._is_zerotensor():  # has no memory to compare
        expected = torch.zeros(expected.shape, dtype=expected.dtype)
    expected = expected.detach().resolve_conj()  # assert_close ignores a 0-d tensor's lazy conjugation
    try:
        assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError:
        if exact is None or not _as_accurate(got, expected, exact()):
            raise


def _is_close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    try:
        assert_close(got, expected, equal_nan=True)
    except AssertionError:
        return False
    return True


def assert_near(got: Any, expected: Any, exact: Callable[[], Any]) -> None:
    """Raises AssertionError unless results, of any structure, are within their dtypes' tolerances, or as exact."""
    try:
        assert_close(got, expected, equal_nan=True)
    except AssertionError:
        triples = list(zip(*(tree_flatten(r)[0] for r in (got, expected, exact())), strict=True))
        if not all(isinstance(g, torch.Tensor) and g.shape == e.shape for g, e, _ in triples):
            raise
        if not all(_is_close(g, e) or _as_accurate(g, e, x) for g, e, x in triples):
            raise


def assert_fake(op: Any, got: Any, args: Any, kwargs: Any) -> None:
    """Raises AssertionError unless the op's fake has the shapes, dtypes and strides that its kernel returned."""
    args, kwargs = tree_map_only(torch.Tensor, lambda t: torch.empty_like(t, device="meta"), (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = "meta"
    fakes = tree_flatten(op(*args, **kwargs))[0]
    for fake, real in zip(fakes, tree_flatten(got)[0], strict=True):
        if isinstance(real, torch.Tensor):
            said = (fake.shape, fake.dtype, fake.stride())
            assert said == (real.shape, real.dtype, real.stride()), f"the fake says {said}, the kernel {real.stride()}"


# (overload, index of a result): the value is not specified, with the reason
UNSPECIFIED: dict[tuple[str, int], str] = {
    ("sort", 1): "the order of equal elements is free in the unstable sort; test_sorting checks the indices",
    ("topk", 1): "which of equal elements is taken is free; test_sorting checks the indices",
    ("kthvalue", 1): "which of equal elements is taken is free",
    ("median.dim", 1): "which of equal elements is taken is free",
    ("nanmedian.dim", 1): "which of equal elements is taken is free",
    ("_ctc_loss", 1): "ATen leaves the states beyond a sample's length uninitialized",
    ("_ctc_loss.Tensor", 1): "ATen leaves the states beyond a sample's length uninitialized",
    ("_linalg_eigh", 1): "an eigenvector is determined up to a phase",
    ("linalg_eig", 1): "an eigenvector is determined up to a phase",
    ("_linalg_svd", 0): "a pair of singular vectors is determined up to a phase",
    ("_linalg_svd", 2): "a pair of singular vectors is determined up to a phase",
}
