"""Every op against ATen, on PyTorch's own samples: values, fakes, gradients, opcheck, and whole-graph compilation.

One table, `op_db`; the default run takes a stratified sample of it. `python -m tests.sweep` runs the same checks, and
more of them, over all of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from jaten_ops import registry

from .harness import checks, exceptions
from .harness.recorded import reached_overloads
from .harness.replay import OP_INFOS, supported

DTYPES = [
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float16,
    torch.int32,
    torch.uint8,
]
# jiterator's run on CUDA only; sparse tensors have no counterpart in JAX
NAMES = [n for n in OP_INFOS if not n.startswith(("jiterator", "sparse."))]
# Overloads that every tenth OpInfo or so reaches: two calls in three.
COMMON = frozenset(
    [
        *("_to_copy", "add.Tensor", "cat", "clone", "detach", "div.Tensor", "eq.Scalar", "expand", "mm", "mul.Scalar"),
        *("mul.Tensor", "neg", "new_zeros", "permute", "scalar_tensor", "select.int", "slice.Tensor", "slice_backward"),
        *("squeeze.dim", "sub.Tensor", "sum", "sum.dim_IntList", "t", "transpose.int", "unsqueeze", "view"),
        *("view_as_real", "where.self", "zeros_like"),
    ]
)


def _pairs() -> list[Any]:
    """Each OpInfo in float32 (or its first dtype), every fourth in one more, in turn; the rest is exhaustive."""
    table = []
    for i, name in enumerate(NAMES):
        turn = i // 4 % len(DTYPES)
        others = [d for d in DTYPES[turn:] + DTYPES[:turn] if supported(name, d)]
        dtypes = [d for d in (torch.float32, *others) if supported(name, d)]
        for rank, dtype in enumerate(dtypes):
            marks = [pytest.mark.exhaustive] if rank > (i % 4 == 0) else []
            table.append(pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks))
    return table


def _every(step: int, values: Iterable[Any]) -> list[Any]:
    """Test parameters of which every `step`th is in the default run, the others in the exhaustive one."""
    return [
        pytest.param(
            *(v if isinstance(v, tuple) else (v,)),
            marks=[] if i % step == 0 else [pytest.mark.exhaustive],
            id=v[0] if isinstance(v, tuple) else v,
        )
        for i, v in enumerate(values)
    ]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def most(request: pytest.FixtureRequest) -> int:
    """The number of samples of an OpInfo that a test takes."""
    return 1000 if request.config.option.markexpr == "exhaustive" else 2


def _of_others(check: str, name: str, dtype: torch.dtype, most: int) -> frozenset[str]:
    """The common overloads that the default run leaves out of the samples of three OpInfos in four."""
    if most > 2 or NAMES.index(name) // len(DTYPES) % 4 == 0 or exceptions.expected_failure(check, name, dtype):
        return frozenset()
    return frozenset(o for o in COMMON if o.partition(".")[0] != OP_INFOS[name].aten_name)


def _compared(check: Callable[..., checks.Found], name: str, dtype: torch.dtype, most: int) -> checks.Found:
    """The findings of a check without what other OpInfos have, or with it if there is nothing else."""
    found = check(name, dtype, most, ignored=(ignored := _of_others(check.__name__, name, dtype, most)))
    return check(name, dtype, most) if ignored and found.skipped else found


def _hold(found: checks.Found) -> None:
    if found.skipped:
        pytest.skip(found.skipped)
    if found.failures:
        pytest.fail("\n".join(found.failures[:5]), pytrace=False)


@pytest.mark.parametrize(("name", "dtype"), _pairs())
def test_values(name: str, dtype: torch.dtype, most: int, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "values", name, dtype)
    _hold(_compared(checks.values, name, dtype, most))


def _of_kernels() -> list[Any]:
    """Each OpInfo in float64; of those that have no kernel, and reach none first, every third by default."""
    packets = {overload.partition(".")[0] for overload in registry.KERNELS}
    names = [n for n in NAMES if supported(n, torch.float64)]
    firsts = set(reached_overloads().values())
    composed = [n for n in names if OP_INFOS[n].aten_name not in packets and n not in firsts]
    left_out = {n for i, n in enumerate(composed) if i % 3}
    return [pytest.param(n, marks=[pytest.mark.exhaustive] if n in left_out else [], id=n) for n in names]


@pytest.mark.parametrize("name", _of_kernels())
def test_gradients(name: str, most: int, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "gradients", name, torch.float64)
    _hold(_compared(checks.gradients, name, torch.float64, most))


@pytest.mark.parametrize(("overload", "name"), _every(8, reached_overloads().items()))
def test_opcheck(overload: str, name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "opcheck", overload, torch.float32)
    _hold(checks.opcheck(overload, name, torch.float32, 1))


@pytest.mark.parametrize(("overload", "name"), _every(3, reached_overloads().items()))
def test_layouts(overload: str, name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "layouts", overload, torch.float32)
    _hold(checks.layouts(overload, name, torch.float32, 1))


@pytest.mark.parametrize("name", _every(7, [n for n in NAMES if supported(n, torch.float64)]))
def test_compiled(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "compiled", name, torch.float64)
    # the sample that a row is about need not be the first
    most = 5 if exceptions.expected_failure("compiled", name, torch.float64) else 1
    _hold(checks.compiled(name, torch.float64, most))
