"""Every op against ATen, on PyTorch's own samples: values, fakes, gradients, opcheck, and whole-graph compilation.

One table, `op_db`; the default run takes a stratified sample of it. `python -m tests.sweep` runs the same checks, and
more of them, over all of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
FLOAT = torch.float32
FIRST = reached_overloads()
"""The OpInfo that is the first to reach an overload."""


def _composed() -> list[str]:
    """The OpInfos of operators that have no kernel, and are the first for none that has one."""
    packets = {overload.partition(".")[0] for overload in registry.KERNELS}
    firsts = set(FIRST.values())
    return [n for n in NAMES if OP_INFOS[n].aten_name not in packets and n not in firsts]


LEFT_OUT = {n for i, n in enumerate(_composed()) if i % 3}
"""OpInfos of which nothing is new in the default run: they reach kernels that others reach."""


def _pairs() -> list[Any]:
    """Each OpInfo in float32 (or its first dtype), every eighth in one more, in turn; the rest is exhaustive."""
    table = []
    for i, name in enumerate(NAMES):
        turn = i // 8 % len(DTYPES)
        others = [d for d in DTYPES[turn:] + DTYPES[:turn] if supported(name, d)]
        dtypes = [d for d in (torch.float32, *others) if supported(name, d)]
        usual = (name not in LEFT_OUT) + (i % 8 == 0)
        for rank, dtype in enumerate(dtypes):
            marks = [pytest.mark.exhaustive] if rank >= usual else []
            table.append(pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks))
    return table


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def most(request: pytest.FixtureRequest) -> int:
    """The number of samples of an OpInfo that a test takes: by default two of every fourth OpInfo, else one."""
    if request.config.option.markexpr == "exhaustive":
        return 1000
    return 1 if NAMES.index(request.getfixturevalue("name")) % 4 else 2


def _of_others(check: str, name: str, dtype: torch.dtype, most: int) -> frozenset[str]:
    """The overloads that the default run leaves out for seven OpInfos in eight: others reach them first."""
    if most > 2 or NAMES.index(name) // len(DTYPES) % 8 == 0 or exceptions.expected_failure(check, name, dtype):
        return frozenset()
    own = OP_INFOS[name].aten_name
    return frozenset(o for o, first in FIRST.items() if first != name and o.partition(".")[0] != own)


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


def _with_gradients() -> list[Any]:
    """Each OpInfo in float64; what `LEFT_OUT` names is exhaustive."""
    marks = {True: [pytest.mark.exhaustive], False: []}
    return [pytest.param(n, marks=marks[n in LEFT_OUT], id=n) for n in NAMES if supported(n, torch.float64)]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", _with_gradients())
def test_gradients(name: str, most: int, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "gradients", name, torch.float64)
    _hold(_compared(checks.gradients, name, torch.float64, most))


@pytest.mark.sampled(32)
@pytest.mark.parametrize(("overload", "name"), FIRST.items())
def test_opcheck(overload: str, name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "opcheck", overload, torch.float32)
    _hold(checks.opcheck(overload, name, torch.float32, 1))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("overload", "name"), FIRST.items())
def test_layouts(overload: str, name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "layouts", overload, torch.float32)
    _hold(checks.layouts(overload, name, torch.float32, 1))


def _as_aten() -> list[str]:
    """The OpInfos whose float32 values are ATen's."""
    return [n for n in NAMES if supported(n, FLOAT) and not exceptions.expected_failure("values", n, FLOAT)]


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", _as_aten())
def test_padded(name: str) -> None:
    """Programs for larger arrays, as those for sizes that change."""
    _hold(checks.padded(name, FLOAT, 1))


@pytest.mark.sampled(52)
@pytest.mark.parametrize("name", [n for n in NAMES if supported(n, torch.float64)])
def test_compiled(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "compiled", name, torch.float64)
    # the sample that a row is about need not be the first
    most = 5 if exceptions.expected_failure("compiled", name, torch.float64) else 1
    _hold(checks.compiled(name, torch.float64, most))
