"""ATen's refusals, by every way: PyTorch's own wrong calls of its operators, dims out of range, and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import jaten_ops  # noqa: F401  # the device jax

from ..harness.paths import compile_whole
from ..harness.replay import OP_INFOS, jaten_overload, op_named

_OFTEN = ("nn.functional.avg_pool2d", "index_add", "linalg.lu", "softmax", "median")
_WITH_ERRORS = sorted(name for name, op in OP_INFOS.items() if op.error_inputs_func is not None)


def _raised(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Exception | None:
    try:
        fn(*args, **kwargs)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in _OFTEN else pytest.mark.exhaustive) for n in _WITH_ERRORS]
)
def test_wrong_calls_of_pytorch_are_refused_compiled(name: str) -> None:
    op = OP_INFOS[name]

    def program(*args: Any, **kwargs: Any) -> Any:  # the function itself may be one that the import has replaced
        return op.op(*args, **kwargs)

    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        call = sample.input, *sample.args
        if _raised(op.op, *call, **sample.kwargs) is None:
            continue  # only of an in-place form, or on another device
        torch._dynamo.reset()
        by_torch = _raised(torch.compile(program, backend="aot_eager", fullgraph=True), *call, **sample.kwargs)
        torch._dynamo.reset()
        by_jaten = _raised(compile_whole(program), *call, **sample.kwargs)
        assert by_torch is None or by_jaten is not None, (sample, by_torch)


class _Direct(TorchDispatchMode):
    """Has direct operators run what ATen's would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        overload = jaten_overload(func)
        return (func if overload is None else op_named(overload))(*args, **kwargs or {})


def _on_device(values: Any) -> Any:
    """The values with their tensors on the device, where they share memory as they do on the CPU."""
    memory: dict[Any, torch.Tensor] = {}

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_cpu or value.layout is not torch.strided:
            return value
        storage = value.untyped_storage()
        key = storage._cdata, value.dtype
        if key not in memory:
            memory[key] = value.detach().as_strided((storage.nbytes() // value.itemsize,), (1,), 0).to("jax")
        on_device = memory[key].as_strided(value.shape, value.stride(), value.storage_offset())
        return on_device.detach().requires_grad_() if value.requires_grad else on_device

    return tree_map(moved, values)


def _there(fn: Callable[..., Any], call: Any, kwargs: Any) -> Exception | None:
    call, kwargs = _on_device((call, kwargs))
    return _raised(fn, *call, **kwargs)


def _directly(fn: Callable[..., Any], call: Any, kwargs: Any) -> Exception | None:
    with _Direct():
        return _raised(fn, *call, **kwargs)


EAGER: dict[str, Callable[..., Exception | None]] = {
    "direct": _directly,
    "on the device": _there,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(n, way, marks=[] if i % 12 == 6 * j else [pytest.mark.exhaustive], id=f"{n}-{way}")
        for i, n in enumerate(_WITH_ERRORS)
        for j, way in enumerate(EAGER)
    ],
)
def test_wrong_calls_of_pytorch_raise_the_same_class(name: str, way: str) -> None:
    op = OP_INFOS[name]
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        call = sample.input, *sample.args
        expected = _raised(op.op, *call, **sample.kwargs)
        if expected is not None:  # else only of an in-place form, or on another device
            assert isinstance(EAGER[way](op.op, call, sample.kwargs), type(expected)), (sample, expected)


x = torch.ones(3, 4)
WRONG: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "softmax": (lambda x: torch.softmax(x, 3), x),
    "softmin": (lambda x: F.softmin(x, -3), x),
    "log_softmax": (lambda x: torch.log_softmax(x, 2), x),
    "logsumexp": (lambda x: torch.logsumexp(x, 2), x),
    "cumsum": (lambda x: torch.cumsum(x, 2), x),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 2), x),
    "glu": (lambda x: F.glu(x, 2), x),
    "sort": (lambda x: torch.sort(x, 2), x),
    "topk": (lambda x: torch.topk(x, 5), x),
    "median": (lambda x: torch.median(x, 2), x),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=2), x),
    "integers in an average": (lambda x: F.adaptive_avg_pool2d(x, 2), torch.ones(1, 1, 4, 4, dtype=torch.int64)),
    "integers in a softmax": (lambda x: torch.softmax(x, 1), torch.ones(2, 2, dtype=torch.int64)),
    "volumes of no channels": (lambda x: F.adaptive_avg_pool3d(x, 2), torch.ones(1, 0, 4, 4, 4)),
    "a range of bools": (lambda x: torch.arange(0, 2, dtype=torch.bool, device=x.device), x),
    "a range of complex numbers": (lambda x: torch.arange(0, dtype=torch.complex64, device=x.device), x),
    "spaced bools": (lambda x: torch.linspace(0, 1, 2, dtype=torch.bool, device=x.device), x),
    "bools on a logarithmic scale": (lambda x: torch.logspace(0, 1, 2, dtype=torch.bool, device=x.device), x),
    "a permutation of complex numbers": (lambda x: torch.randperm(3, dtype=torch.complex64, device=x.device), x),
    "a long permutation of halves": (lambda x: torch.randperm(2050, dtype=torch.float16, device=x.device), x),
    "a complex window": (lambda x: torch.hann_window(3, dtype=torch.complex64, device=x.device), x),
    "complex rates": (torch.poisson, x.to(torch.complex64)),
    "floats and bits": (lambda x: x & x, x),
    "shifted floats": (lambda x: torch.bitwise_left_shift(x, x), x),
    "lcm of floats": (lambda x: torch.lcm(x, x), x),
    "rot90 of a dim with itself": (lambda x: torch.rot90(x, 1, (0, -2)), x),
    "rot90 of a dim that is not": (lambda x: torch.rot90(x, 1, (0, 5)), x),
    "a grid of doubles": (lambda x: F.grid_sample(x, x.new_ones(1, 2, 2, 2, dtype=torch.float64)), x.view(1, 1, 3, 4)),
    "a grid in nothing": (lambda x: F.grid_sample(x[:, :, :0], x.new_ones(1, 2, 2, 2)), x.view(1, 1, 3, 4)),
    "a grid of three": (lambda x: F.grid_sample(x, x.new_ones(1, 2, 2, 3)), x.view(1, 1, 3, 4)),
    "a grid of bytes": (lambda x: F.grid_sample(x, x.new_ones(1, 2, 2, 2)), x.view(1, 1, 3, 4).byte()),
    "a mask of floats": (lambda x: x.masked_scatter(x, x), x),
    "item of nothing": (lambda x: torch.ops.aten.item(x[:0]), x),
    "item of many": (lambda x: torch.ops.aten.item(x), x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", ["compiled", "on the device", "compiled on the device"])
@pytest.mark.parametrize("name", WRONG)
def test_refused_as_by_aten(name: str, path: str) -> None:
    fn, given = WRONG[name]
    expected = _raised(fn, given)
    assert expected is not None
    torch._dynamo.reset()
    run = compile_whole(fn) if "compiled" in path else fn
    found = _raised(run, given.to("jax") if "device" in path else given)
    assert found is not None
    own = isinstance(expected, IndexError | NotImplementedError) and type(found).__module__ != "torch._dynamo.exc"
    assert isinstance(found, type(expected) if own else Exception), repr(found)


NARROW: dict[str, Callable[[torch.Tensor], Any]] = {
    **{
        name: getattr(torch.linalg, name)
        for name in ("cholesky", "cholesky_ex", "det", "eig", "eigh", "eigvals", "inv", "lu", "lu_factor", "qr")
    },
    "householder_product": lambda x: torch.linalg.householder_product(x, x[0]),
    "lstsq": lambda x: torch.linalg.lstsq(x, x),
    "solve": lambda x: torch.linalg.solve(x, x),
    "svdvals": torch.linalg.svdvals,
    "complex": lambda x: torch.complex(x, x),
    "polar": lambda x: torch.polar(x, x),
    "stft": lambda x: torch.stft(x.flatten(), 4, window=torch.ones_like(x[0]), return_complex=True),
}


@pytest.mark.parametrize("path", ["compiled", "on the device"])
@pytest.mark.parametrize("name", NARROW)
def test_half_precision_is_refused_in_the_words_of_aten(name: str, path: str) -> None:
    fn, x = NARROW[name], torch.eye(4, dtype=torch.bfloat16)
    expected = _raised(fn, x)
    torch._dynamo.reset()
    found = _raised(compile_whole(fn), x) if path == "compiled" else _raised(fn, x.to("jax"))
    by_dynamo = type(found).__module__ == "torch._dynamo.exc"  # whose fakes have words of their own
    assert found is not None
    assert by_dynamo or str(expected).partition("BFloat16")[0] in str(found).replace("torch.bfloat16", "BFloat16")


# In place, their gradient is by the result, which does not tell the input's sign if the slope is negative
BACKWARD: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "leaky_relu_": lambda x, slope: F.leaky_relu_(x * 1, slope),
    "elu_": lambda x, slope: F.elu_(x * 1, slope),
    "elu_ of three numbers": lambda x, slope: torch.ops.aten.elu_(x * 1, slope, 2.0, 0.5),
    "celu_": lambda x, slope: F.celu_(x * 1, slope),
    "rrelu_": lambda x, slope: F.rrelu_(x * 1, slope, slope),
    "rrelu_ in training": lambda x, slope: F.rrelu_(x * 1, slope, slope, True),
    "leaky_relu": lambda x, slope: F.leaky_relu(x * 1, slope),
    "elu": lambda x, slope: F.elu(x * 1, slope),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", ["compiled", "on the device", "compiled on the device"])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_refused_as_by_aten(name: str, path: str) -> None:
    fn = BACKWARD[name]

    def gradient(run: Callable[..., torch.Tensor], device: str, slope: float) -> torch.Tensor | type[Exception]:
        x = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
        loss = run(x, slope).sum()
        error = _raised(loss.backward)
        if error is not None:
            assert isinstance(error, RuntimeError)
            return RuntimeError
        assert x.grad is not None
        return x.grad.cpu()

    torch._dynamo.reset()
    run = compile_whole(fn) if "compiled" in path else fn
    for slope in (0.5, -0.5, -0.25):  # the last two as a number that changes, if compiled
        expected = gradient(fn, "cpu", slope)
        found = gradient(run, "jax" if "device" in path else "cpu", slope)
        if isinstance(expected, type):
            assert found is expected
        else:
            torch.testing.assert_close(found, expected)
