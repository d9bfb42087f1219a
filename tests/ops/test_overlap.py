"""The out= overloads, with outputs that lie anywhere in memory and have any dtype: what ATen takes, jaten takes.

The calls are those that PyTorch's samples make of the functional overload. Each is made twice, with tensors of its own.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from jaten_ops.ops.variants import mutated_arguments
from jaten_ops.schema import COMPOSITE, FUNCTIONAL, VARIANTS, OpSpec

from ..harness.beside import Beside, assert_same_outcome
from ..harness.comparison import assert_same, in_float64
from ..harness.recorded import op_of_aten
from ..harness.replay import (
    OP_INFOS,
    callable_overload,
    describe_call,
    jaten_overload,
    op_named,
    replay_opinfo,
    supported,
)
from ..test_ops import NAMES

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)

# ATen takes an output with many elements in one place, and the one that is written last stays. jaten has no such order.
LAST_WRITE_STAYS = "more than one element of the written-to tensor"

# ATen looks at one of two outputs, and only where bins are given as a tensor.
NOT_REFUSED = ("histogram.bins_tensor_out", "partly argument 1")

Make = Callable[[], tuple[list[Any], list[torch.Tensor]]]
"""Makes the flat arguments of a call, and its outputs, which may share their memory."""


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _outs_of(base: str) -> list[OpSpec]:
    return [s for s in VARIANTS.values() if s.kind == "out" and s.base == base]


class Outs(Beside):
    """Makes each call once more with ATen's and jaten's out= overloads, and notes where they differ."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()
        self._state = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        overload = jaten_overload(func)
        if overload is not None and callable_overload(overload, args) == overload:
            outputs = list(results) if isinstance(results, list | tuple) else [results]
            call = describe_call(overload, args, kwargs)
            if call not in self._seen and all(isinstance(t, torch.Tensor) for t in outputs):
                self._seen.add(call)
                with torch._C._ForceDispatchKeyGuard(*self._state), torch.no_grad():
                    for spec in _outs_of(overload):
                        self._compare_all(spec, args, kwargs, outputs)
        return results

    def _compare_all(self, spec: OpSpec, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> None:
        written = mutated_arguments(spec)
        if len(written) != len(outputs):
            return
        taken = {a.name for a in spec.arguments}
        flat, tree = tree_flatten((args, {k: v for k, v in kwargs.items() if k in taken}))

        def attempt(op: Any, make: Make) -> Any:
            values, outs = make()
            args, kwargs = tree_unflatten(values, tree)
            try:
                op(*args, **kwargs, **dict(zip(written, outs, strict=True)))
            except Exception as error:
                return error
            return outs

        for what, make in _layouts(flat, outputs):
            expected, got = (attempt(find(spec.overload), make) for find in (op_of_aten, op_named))
            self.compared += 1
            exact = functools.partial(in_float64, op_of_aten(spec.base), args, kwargs)
            problem = _difference(spec, what, got, expected, outputs, exact)
            if problem:
                self.failures.append(f"{describe_call(spec.overload, args, kwargs)} {what}: {problem}")


def _layouts(flat: list[Any], outputs: list[torch.Tensor]) -> Iterator[tuple[str, Make]]:
    """The kinds of output: new ones, then each in another dtype, in one place, an input, and partly in an input."""

    def make(at: int, out: Callable[[], torch.Tensor] | None = None) -> Make:
        def made() -> tuple[list[Any], list[torch.Tensor]]:
            outs = [torch.empty(t.shape, dtype=t.dtype) for t in outputs]
            if out is not None:
                outs[at] = out()
            return [_copy(v) for v in flat], outs

        return made

    def within(at: int, i: int, ahead: int) -> Make:
        def made() -> tuple[list[Any], list[torch.Tensor]]:
            values, outs = make(at)()
            size, out = values[i].numel(), outs[at]
            memory = torch.zeros(2 * (size + out.numel()) + 16, dtype=out.dtype)  # also for a kernel that writes beyond
            values[i] = memory[:size].view(values[i].shape).copy_(values[i])
            outs[at] = memory[ahead : ahead + out.numel()].view(out.shape)
            if ahead == 0 and out.shape == values[i].shape:
                outs[at] = values[i]
            return values, outs

        return made

    yield "new", make(0)
    for at, output in enumerate(outputs):
        for dtype in DTYPES:
            if dtype != output.dtype:
                yield f"as {dtype}", make(at, lambda dtype=dtype, shape=output.shape: torch.empty(shape, dtype=dtype))
        if output.numel() < 2:
            continue
        room = 2 * output.numel() + 16
        yield (
            "in one place",
            make(at, lambda t=output, n=room: torch.zeros(n, dtype=t.dtype).as_strided(t.shape, [0] * t.dim())),
        )
        for i, value in enumerate(flat):
            if isinstance(value, torch.Tensor) and value.dtype == output.dtype and value.numel() > 1:
                yield f"partly argument {i}", within(at, i, value.numel() - 1)
                if value.shape == output.shape:
                    yield f"is argument {i}", within(at, i, 0)


def _difference(
    spec: OpSpec, what: str, got: Any, expected: Any, outputs: list[torch.Tensor], exact: Callable[[], Any]
) -> str | None:
    if isinstance(expected, Exception) or isinstance(got, Exception):
        if what == "in one place" and LAST_WRITE_STAYS in str(got):
            return None
        if (spec.overload, what) == NOT_REFUSED:
            return None
        return None if type(got) is type(expected) else f"got {got!r}, expected {expected!r}"
    base = FUNCTIONAL.get(spec.base) or COMPOSITE[spec.base]
    # ATen may have read what it had overwritten
    if what.startswith("partly") or (what.startswith("is") and "pointwise" not in base.tags) or base.random:
        return None
    if what.startswith("as"):  # as exact as the results are
        got, expected = ([r.to(t.dtype) for r, t in zip(rs, outputs, strict=True)] for rs in (got, expected))
    try:
        got, expected = (rs[0] if len(rs) == 1 else rs for rs in (got, expected))
        assert_same(spec.base, got, expected, exact=exact)
    except AssertionError as error:
        return str(error)
    return None


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.sampled(128)
@pytest.mark.parametrize("name", [n for n in NAMES if OP_INFOS[n].supports_out])
def test_out(name: str) -> None:
    mode = Outs()
    dtype = next((d for d in DTYPES if supported(name, d)), None)
    if dtype is None:
        pytest.skip("takes none of these dtypes")
    replay_opinfo(name, dtype, mode, 2)
    assert not mode.failures, "\n".join(mode.failures[:5])


x = torch.arange(6.0)

# in place: a call of a namespace of operators, of tensors of its own
IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "whole": lambda ops: (y := x.clone(), ops.add_.Tensor(y, y))[1],
    "shifted": lambda ops: (y := x.clone(), ops.add_.Tensor(y[1:], y[:-1]))[1],
    "apart": lambda ops: (y := x.clone(), ops.add_.Tensor(y[3:], y[:3]), y)[2],
    "transposed": lambda ops: (y := x[:4].clone().view(2, 2), ops.mul_.Tensor(y, y.t()))[1],
    "transposed composite": lambda ops: (y := x[:4].clone().view(2, 2), ops.addmm_(y, y.t(), y))[1].sum() * 0,
    "number": lambda ops: (y := x.clone(), ops.mul_.Scalar(y[1:], 2.0), y)[2],
    "index": lambda ops: (y := x.clone(), ops.index_copy_(y, 0, torch.tensor([0]), y[1:2]))[1],
    "scatter": lambda ops: (y := x.clone(), ops.scatter_.src(y, 0, torch.tensor([0]), y))[1],
    "put": lambda ops: (y := x.clone(), ops.put_(y, torch.tensor([0]), y[:1]))[1],
    "index_put": lambda ops: (y := x.clone(), ops.index_put_(y, [torch.tensor([0, 1])], y[1:3]))[1],
    "masked_scatter": lambda ops: (y := x.clone(), ops.masked_scatter_(y, x > 2, y))[1],
    "fill expanded": lambda ops: ops.fill_.Scalar(x[:1].clone().expand(2, 3), 2.0),
    "fill a part": lambda ops: ops.fill_.Tensor(x[:2].clone().view(2, 1).expand(2, 3), x[4]),
    "zero expanded": lambda ops: ops.zero_(x[1:3].clone().expand(3, 2)),
    "expanded": lambda ops: ops.add_.Tensor(x[:1].clone().expand(3), x[:3]),
    "gaps": lambda ops: (y := x.clone(), ops.add_.Tensor(y[::2], y[1::2]), y)[2],
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    assert_same_outcome("add.Tensor", IN_PLACE[name])


# ATen takes these, and warns that it will not; one element would be written to several times
DEPRECATED = ("masked_fill", "index_put")
_WRITING = sorted(n for n in OP_INFOS if OP_INFOS[n].inplace_variant is not None and n not in DEPRECATED)
_OFTEN = ("abs", "addmm", "addbmm", "logical_not", "masked_scatter", "nan_to_num", "nn.functional.celu", "add", "relu")


def _outcome(fn: Callable[..., Any], like: torch.Tensor, device: str, sample: Any) -> type[Exception] | None:
    """The class of error of a call that writes to a tensor whose rows are one row in memory."""

    def moved(value: Any) -> Any:
        return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value

    args, kwargs = tree_map(moved, (sample.args, sample.kwargs))
    try:
        fn(moved(like[:1]).expand(like.shape), *args, **kwargs)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in _OFTEN else pytest.mark.exhaustive) for n in _WRITING]
)
def test_expanded_tensors_are_written_to_as_on_the_cpu(name: str) -> None:
    info = OP_INFOS[name]
    dtype = next((d for d in DTYPES if info.supports_dtype(d, "cpu")), None)
    if dtype is None:
        pytest.skip("takes none of these dtypes")
    samples = (s for s in info.sample_inputs("cpu", dtype) if isinstance(s.input, torch.Tensor))
    for sample in itertools.islice((s for s in samples if s.input.dim() and s.input.shape[0] > 1), 3):
        expected = _outcome(info.inplace_variant, sample.input, "cpu", sample)
        assert _outcome(info.inplace_variant, sample.input, "jax", sample) is expected


@pytest.mark.parametrize("ends", [(0, 0), (0, 1), (0, 3)], ids=["the same", "in part", "apart"])
@pytest.mark.parametrize("dim", [1, None])
def test_outputs_that_share_memory(dim: int | None, ends: tuple[int, int]) -> None:
    x, found = torch.arange(12.0).view(3, 4), []
    for ops in (torch.ops.aten, torch.ops.jaten):
        memory = torch.zeros(6)
        least, most = (memory[at : at + 3] if dim else memory[at] for at in ends)
        try:
            ops.aminmax.out(x, dim=dim, min=least, max=most)
            found.append((None, memory.tolist() if ends == (0, 3) else None))  # else the last write stays
        except (RuntimeError, ValueError) as error:
            found.append((type(error), None))
    assert found[0] == found[1]


def test_traced_tensors_lie_nowhere() -> None:
    def shift(y: torch.Tensor) -> torch.Tensor:
        torch.ops.jaten.add_.Tensor(y[3:], y[:3])
        return y

    got = torch.compile(shift, backend="jaten", fullgraph=True)(x.clone())
    assert got.tolist() == shift(x.clone()).tolist() == [0, 1, 2, 3, 5, 7]


def _leaf() -> torch.Tensor:
    return x.clone().requires_grad_()


# an output, or what it is computed from, requires a gradient
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "input": lambda ops: ops.add.out(_leaf(), x, out=torch.empty(6)),
    "output": lambda ops: ops.add.out(x, x, out=_leaf() * 1),
    "integers": lambda ops: ops.argmax.out(_leaf(), out=torch.tensor(0)),
    "predicate": lambda ops: ops.eq.Tensor_out(_leaf(), x, out=torch.empty(6, dtype=torch.bool)),
    "mean": lambda ops: ops.mean.out(_leaf(), [0], out=torch.tensor(0.0)),
    "list": lambda ops: ops.cat.out([x, _leaf()], out=torch.empty(12)),
    "without gradients": lambda ops: torch.no_grad()(ops.add.out)(_leaf(), x, out=torch.empty(6)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    assert_same_outcome("add.Tensor", GRADIENTS[name])


def test_gradient_of_a_composed_output() -> None:
    """ATen composes the functional operator and a copy, and accepts the call; here it has a gradient, too."""
    leaf = _leaf()
    torch.ops.aten.mul.Scalar_out(leaf, 3.0, out=torch.empty(6))
    torch.ops.jaten.mul.Scalar_out(leaf, 3.0, out=torch.empty(6)).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [3] * 6
