"""Calls that ATen refuses are refused by jaten, too, with an exception of the same class.

The wrong calls are PyTorch's own (the error inputs of `op_db`) and those of `wrong_calls`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from jaten_ops.registry import KERNELS
from jaten_ops.schema import COMPOSITE, FUNCTIONAL, VARIANTS, OpSpec

from .harness import exceptions
from .harness.beside import Beside
from .harness.comparison import assert_same
from .harness.recorded import op_of_aten
from .harness.replay import OP_INFOS, callable_overload, describe_call, jaten_overload, op_named, samples, supported
from .programs.wrong_calls import BY_SHAPES, BY_VALUES, Wrong
from .test_ops import NAMES


def _overload(func: Any, args: Any) -> str | None:
    """The jaten overload, functional or variant, that takes the arguments of an ATen call."""
    found = jaten_overload(func)
    if found is not None:
        return callable_overload(found, args)
    name = func._schema.name.removeprefix("aten::") + f".{func._schema.overload_name}".removesuffix(".")
    spec = VARIANTS.get(name)
    return name if spec is not None and "inplace_view" not in spec.tags else None


# ATen has it for integers on CUDA, and programs for accelerators rely on that
AS_ON_CUDA = ("histc",)


class Errors(Beside):
    """Makes each ATen call that raises once more with jaten, and notes if that does not raise the same class."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as error:
            overload = _overload(func, args)
            if overload is not None and overload not in AS_ON_CUDA:
                self.compared += 1
                got = _raised(op_named(overload), args, kwargs)
                if type(got) is not type(error):
                    self.failures.append(f"{describe_call(overload, args, kwargs)}: got {got!r}, expected {error!r}")
            raise


def _raised(op: Any, args: Any, kwargs: Any) -> Exception | None:
    try:
        op(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _compare(name: str) -> Errors:
    op = OP_INFOS[name]
    mode = Errors()
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        with mode:
            _raised(op, (sample.input, *sample.args), sample.kwargs)
    return mode


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


WITH_ERRORS = [n for n in NAMES if OP_INFOS[n].error_inputs_func is not None]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", WITH_ERRORS)
def test_error_inputs(name: str, request: pytest.FixtureRequest) -> None:
    """Errors that ATen raises before an operator is reached (in Python, in a composite) are not jaten's."""
    exceptions.apply(request, "errors", name, torch.float32)
    mode = _compare(name)
    assert not mode.failures, "\n".join(mode.failures[:5])


DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", NAMES)
def test_dtypes(name: str) -> None:
    """The first samples in each dtype that the OpInfo does not claim: ATen refuses most."""
    base = next((d for d in DTYPES if supported(name, d)), None)
    if base is None:
        pytest.skip("takes none of these dtypes")
    mode = Errors()
    for dtype in DTYPES:
        for sample in [] if supported(name, dtype) else samples(name, base, False, 2):
            args, kwargs = tree_map_only(
                torch.Tensor,
                lambda t, dtype=dtype: t.to(dtype) if t.dtype == base else t,
                ((sample.input, *sample.args), sample.kwargs),
            )
            with mode:
                _raised(OP_INFOS[name], args, kwargs)
    assert not mode.failures, "\n".join(mode.failures[:5])


def test_histograms_of_integers() -> None:
    x = torch.tensor([0, 3, 3, 1, 7, -2], dtype=torch.int32)
    for options in ({"bins": 4, "min": 0, "max": 3}, {"bins": 3}, {"bins": 5, "min": 2, "max": 2}):
        counts = torch.histc(x.to("jax"), **options)
        assert counts.dtype == torch.int32
        assert counts.tolist() == torch.histc(x.double(), **options).tolist()


def _params(rows: list[Wrong]) -> list[Any]:
    """Each row under a name of its own."""
    return [pytest.param(row, id=f"{i}-{row}") for i, row in enumerate(rows)]


def _works(row: Wrong, call: Callable[..., Any]) -> None:
    """The right call gives what ATen gives, also after the wrong one."""
    expected = op_of_aten(row.overload)(*row.right, **row.keywords)
    got = call(*row.right, **row.keywords)
    spec = FUNCTIONAL.get(row.overload)
    if spec is not None and not spec.random:
        assert_same(row.overload, got, expected)


def _assert_refused(row: Wrong, call: Callable[..., Any]) -> None:
    args, kwargs = row.wrong_args()
    expected = _raised(op_of_aten(row.overload), args, kwargs)
    assert expected is not None, "ATen takes this call"
    got = _raised(call, args, kwargs)
    assert type(got) is type(expected), f"got {got!r}, expected {expected!r}"


@pytest.mark.sampled(24)
@pytest.mark.parametrize("row", _params([*BY_VALUES, *BY_SHAPES]))
def test_wrong_calls(row: Wrong, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "errors", str(row), torch.float32)
    op = op_named(row.overload)
    _assert_refused(row, op)
    _works(row, op)


# Sizes that depend on values are not lowered.
NOT_COMPILED = ("bincount", "repeat_interleave", "_ctc_loss.Tensor")


def _found_when_run(row: Wrong) -> bool:
    """True if only the values of tensors are wrong: the compiler finds everything else beforehand."""
    return not row.overload.startswith(NOT_COMPILED) and all(
        isinstance(v, torch.Tensor) for w in row.wrong.values() for v in (w if isinstance(w, list) else [w])
    )


@pytest.mark.sampled(24)
@pytest.mark.parametrize("row", _params([row for row in BY_VALUES if _found_when_run(row)]))
def test_wrong_calls_compiled(row: Wrong) -> None:
    torch._dynamo.reset()
    op = op_of_aten(row.overload)

    @torch.compile(backend="jaten", fullgraph=True)
    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    _works(row, call)
    _assert_refused(row, call)
    _works(row, call)


# The arguments of a call with empty lists of tensors, by their types.
OF_NO_TENSORS = {
    "int": 1, "int[]": [1], "bool": False, "bool[]": [False], "Scalar": 1.0, "Scalar[]": [], "float": 1.0, "str": "sum"
}  # fmt: skip
# ATen's crashes; its composition of an in-place operator finds no kernel; jaten has none
NOT_COMPARED = ("_stack", "_fused_", "dequantize")


def _takes_only_lists(spec: OpSpec) -> bool:
    types = [a.type for a in spec.arguments if a.is_tensor]
    known = spec.overload in KERNELS or spec.overload not in FUNCTIONAL
    return "Tensor[]" in types and "Tensor" not in types and known and not spec.overload.startswith(NOT_COMPARED)


LIST_TAKERS = {n: s for n, s in (FUNCTIONAL | COMPOSITE | VARIANTS).items() if _takes_only_lists(s)}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("overload", LIST_TAKERS)
def test_empty_lists(overload: str) -> None:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for a in LIST_TAKERS[overload].arguments:
        if not a.has_default or a.is_tensor:
            value = ([] if "[]" in a.type else None) if a.is_tensor else OF_NO_TENSORS.get(a.type)
            if a.kwarg_only:
                kwargs[a.name] = value
            else:
                args.append(value)
    outcomes = []
    for op in (op_of_aten(overload), op_named(overload)):
        try:
            outcomes.append(op(*args, **kwargs))
        except Exception as error:
            outcomes.append(error)
    expected, got = outcomes
    assert type(got) is type(expected), f"got {got!r}, expected {expected!r}"
    assert isinstance(got, Exception) or repr(got) == repr(expected)


def test_empty_lists_leave_fake_tensors_alone() -> None:
    """A kernel for calls without tensors must not make torch take the operator for a composite."""
    with FakeTensorMode():
        assert torch.ops.jaten.cat([torch.ones(2), torch.ones(3)]).shape == (5,)
    compiled = torch.compile(lambda x: torch.ops.jaten.cat([x, x]), backend="jaten", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [1, 1, 1, 1]


# calls with None for a tensor: an operator's name, and the arguments
OF_NONE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "the only one": ("relu", (None,)),
    "the first": ("add.Tensor", (None, 1.0)),
    "the second": ("add.Tensor", (1.0, None)),
    "in place": ("add_.Tensor", (1.0, None)),
    "of three": ("where.self", (None, 1.0, 1.0)),
    "a composition": ("matmul", (1.0, None)),
    "in a list": ("cat", ([None],)),
}


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OF_NONE)
def test_none_for_a_tensor(name: str, grad: bool, device: str) -> None:
    overload, given = OF_NONE[name]
    args = [torch.ones(2, device=device, requires_grad=grad) * 1 if isinstance(a, float) else a for a in given]
    with pytest.raises(RuntimeError, match=r"None|no tensor arguments") as refused:
        op_named(overload)(*args)
    if overload not in COMPOSITE:  # of which ATen says it
        assert overload.partition(".")[0].rstrip("_") in str(refused.value)
    with pytest.raises(RuntimeError):
        op_of_aten(overload)(*args)
