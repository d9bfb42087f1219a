"""Every op against ATen, on PyTorch's own samples: values, fakes, gradients, opcheck, and whole-graph compilation.

One table, `op_db`; the default run takes a stratified sample of it, the marker `exhaustive` all of it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.utils._pytree import tree_flatten, tree_map_only

from jaten_ops import registry

from . import exceptions
from .recorded import Call, op_named, reached_overloads, recorded_calls
from .replay import OP_INFOS, Replay, replay_opinfo, samples, supported

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


def _pairs() -> list[Any]:
    """Each OpInfo in float32 (or its first dtype), every other one in one more, in turn; the rest is exhaustive."""
    table = []
    for i, name in enumerate(NAMES):
        others = [d for d in DTYPES[i % len(DTYPES) :] + DTYPES[: i % len(DTYPES)] if supported(name, d)]
        dtypes = [d for d in (torch.float32, *others) if supported(name, d)]
        for rank, dtype in enumerate(dtypes):
            marks = [pytest.mark.exhaustive] if rank > (i % 2 == 0) else []
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
    """How many samples of an OpInfo a test takes."""
    return 1000 if request.config.option.markexpr == "exhaustive" else 2


@pytest.mark.parametrize(("name", "dtype"), _pairs())
def test_values(name: str, dtype: torch.dtype, most: int, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "values", name, dtype)
    mode = Replay(check_fakes=True)
    replay_opinfo(name, dtype, mode, most)
    failures = list(itertools.chain.from_iterable(o.failures or [] for o in mode.outcomes.values()))
    assert not failures, "\n".join(failures[:5])


def _gradients(call: Call, op: Any) -> list[torch.Tensor | None]:
    """The gradients of an op's differentiable arguments, for random ones of its results."""
    spec = registry.SPECS[call.overload]
    leaves: list[torch.Tensor] = []

    def leaf(t: torch.Tensor) -> torch.Tensor:
        t = t.detach().clone()
        if t.is_floating_point() or t.is_complex():
            leaves.append(t.requires_grad_())
        return t

    positions = [i for i, a in enumerate(spec.arguments) if a.name in spec.differentiable]
    args = [tree_map_only(torch.Tensor, leaf, v) if i in positions else v for i, v in enumerate(call.args)]
    results = [r for r in tree_flatten(op(*args, **call.kwargs))[0] if isinstance(r, torch.Tensor) and r.requires_grad]
    generator = torch.Generator().manual_seed(1)
    if not results or not leaves:
        return []
    grads = [torch.randn(r.shape, dtype=r.dtype, generator=generator) for r in results]
    return list(torch.autograd.grad(results, leaves, grads, allow_unused=True))


# The vectors of a decomposition are free in sign or phase, and so are their gradients; test_decomposition takes
# functions of them that are not.
FREE = frozenset({"_linalg_svd", "_linalg_eigh", "linalg_eig", "geqrf"})


@pytest.mark.parametrize("name", [n for n in NAMES if supported(n, torch.float64)])
def test_gradients(name: str, most: int, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "gradients", name, torch.float64)
    for call in recorded_calls(name, torch.float64, most):
        spec = registry.SPECS[call.overload]
        if not spec.differentiable or spec.random or call.overload in FREE:
            continue
        expected = _gradients(call, call.aten)
        got = _gradients(call, op_named(call.overload))
        got = [torch.zeros_like(e) if g is None and e is not None else g for g, e in zip(got, expected, strict=True)]
        expected = [
            torch.zeros_like(g) if e is None and g is not None else e for g, e in zip(got, expected, strict=True)
        ]
        torch.testing.assert_close(got, expected, equal_nan=True, msg=lambda m, c=call: f"{c}: {m}")


def _within_domain(call: Call) -> Any:
    """A call's arguments, without their signs if outside the op's domain: to opcheck, NaN is unequal to NaN."""
    results = tree_flatten(call.aten(*call.args, **call.kwargs))[0]
    if all(r.isfinite().all() for r in results if isinstance(r, torch.Tensor)):
        return call.args, call.kwargs
    return tree_map_only(torch.Tensor, lambda t: t.abs() if t.is_floating_point() else t, (call.args, call.kwargs))


@pytest.mark.parametrize(("overload", "name"), _every(4, reached_overloads().items()))
def test_opcheck(overload: str, name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "opcheck", overload, torch.float32)
    for call in recorded_calls(name, torch.float32, 1):
        if call.overload != overload:
            continue
        args, kwargs = tree_map_only(
            torch.Tensor,
            lambda t: t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex()),
            _within_domain(call),
        )
        torch.library.opcheck(op_named(call.overload), tuple(args), kwargs)
        break


@pytest.mark.parametrize("name", _every(4, [n for n in NAMES if supported(n, torch.float32)]))
def test_compiled(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "compiled", name, torch.float32)
    op = OP_INFOS[name]
    differentiable = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    for sample in samples(name, torch.float32, differentiable, 1):

        def call(*args: Any, **kwargs: Any) -> Any:
            return op.op(*args, **kwargs)

        expected = _captured_whole(call, "aot_eager", sample)
        got = _captured_whole(call, "jaten", sample)
        if _draws(name) or name.startswith(("empty", "new_empty")):
            continue
        torch.testing.assert_close(got, expected, equal_nan=True)


def _draws(name: str) -> bool:
    return any(registry.SPECS[c.overload].random for c in recorded_calls(name, torch.float32, 1))


def _captured_whole(call: Any, backend: str, sample: Any) -> Any:
    """The results of a sample compiled in one graph; skips the test if Dynamo itself cannot capture it."""
    torch._dynamo.reset()
    try:
        return torch.compile(call, backend=backend, fullgraph=True)(sample.input, *sample.args, **sample.kwargs)
    except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
        pytest.skip(f"Dynamo cannot capture this: {str(error).splitlines()[0]}")
