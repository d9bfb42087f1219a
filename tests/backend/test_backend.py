"""`torch.compile(backend="jaten")`: what a compiled function shares, mutates, returns, draws and raises."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from jaten_ops.arrays import bridge
from jaten_ops.backend.graph_compilation import Compiler

compiled = torch.compile(backend="jaten")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _same(fn: Callable[..., Any], *args: Any) -> None:
    """The compiled function gives eager's values, dtypes, shapes and strides."""
    expected = fn(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args])
    got = torch.compile(fn, backend="jaten", fullgraph=True)(*args)
    torch.testing.assert_close(got, expected, check_stride=True, equal_nan=True)


STRIDED = {
    "transposed": lambda x: (x + 1).t(),
    "transposed input": lambda x: x.t() + 1,
    "permuted": lambda x: (x.view(3, 2, 2) * 2).permute(2, 0, 1),
    "permuted input": lambda x: x.view(3, 2, 2).permute(2, 0, 1) * 2,
    "expanded": lambda x: x.sum(1, keepdim=True).expand(3, 4),
    "sliced": lambda x: (x + 1)[:, ::2],
    "row-major": lambda x: x + 1,
    "0-d": lambda x: x.sum(),
    "empty": lambda x: x[:0] + 1,
    "channels last": lambda x: (x.view(1, 3, 2, 2) + 1).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STRIDED)
def test_outputs_have_eager_strides(name: str) -> None:
    _same(STRIDED[name], torch.randn(3, 4))


INPUTS = {
    "contiguous": torch.randn(4, 4),
    "transposed": torch.randn(4, 4).t(),
    "step slice": torch.randn(4, 8)[:, ::2],
    "expanded": torch.randn(4, 1).expand(4, 4),
    "misaligned storage": torch.randn(17)[1:].view(4, 4),
    "conj bit": torch.randn(4, 4, dtype=torch.complex64).conj(),
    "neg bit": torch.randn(4, 4, dtype=torch.complex64).conj().imag,
    "0-d": torch.randn(()),
    "empty": torch.randn(0, 4),
    "float64": torch.randn(4, dtype=torch.float64),
    "int64 beyond 32 bits": torch.tensor([2**40 + 1, -(2**40)]),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.randn(4).bfloat16(),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_every_form(name: str) -> None:
    x = INPUTS[name]
    torch.testing.assert_close(torch.compile(_double, backend="jaten")(x), _double(x))
    torch.testing.assert_close(torch.ops.jaten.mul.Tensor(x, torch.tensor(2, dtype=x.dtype)), _double(x).to(x.dtype))


def test_zero_copy_in_and_out() -> None:
    x = torch.randn(64)
    array = bridge.borrow(x)
    assert array.unsafe_buffer_pointer() == x.data_ptr()
    out = bridge.as_tensor(array)
    assert out.data_ptr() == x.data_ptr()


def test_64_bit_inputs_are_not_narrowed() -> None:
    fn = torch.compile(lambda i, x: (i + 1, x * 2), backend="jaten")
    for i, x in ((2**62 + 3, 1e300), (-(2**40), 2.0**-1000)):
        integers, floats = torch.tensor([i, 1]), torch.tensor([x, 1.0], dtype=torch.float64)
        for got, expected in zip(fn(integers, floats), (integers + 1, floats * 2), strict=True):
            assert torch.equal(got, expected) and got.dtype == expected.dtype
    assert not jax.config.jax_enable_x64 and jax.numpy.arange(3).dtype == "int32"


def test_parameters_are_not_converted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(8, 8)
    fn = torch.compile(model, backend="jaten")
    x = torch.randn(2, 8)
    with torch.no_grad():
        fn(x)
        seen: list[int] = []
        for name in ("borrow", "lend"):
            convert = getattr(bridge, name)
            monkeypatch.setattr(
                bridge, name, lambda t, at, convert=convert: seen.append(t.data_ptr()) or convert(t, at)
            )
        fn(x)
        assert not seen
        model.weight.add_(1)  # in place: the same memory, seen without conversion
        torch.testing.assert_close(fn(x), model(x))
        assert model.weight.data_ptr() not in seen
        model.weight.data = model.weight + 1  # other memory: noticed
        torch.testing.assert_close(fn(x), model(x))
        assert model.weight.data_ptr() in seen


def test_misaligned_parameter_is_read_at_each_call() -> None:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.randn(17)[1:].view(4, 4))
    fn = torch.compile(model, backend="jaten")
    x = torch.randn(2, 4)
    with torch.no_grad():
        fn(x)
        model.weight.mul_(3)
        torch.testing.assert_close(fn(x), model(x))


def test_async_in_place_write_after_call() -> None:
    x = torch.ones(512, 512)
    fn = torch.compile(lambda x: x @ x @ x @ x, backend="jaten")
    expected = fn(x).clone()
    for _ in range(10):
        got = fn(x)
        x.zero_()
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        x.fill_(1)


def test_clone_does_not_alias() -> None:
    x = torch.randn(64)
    for clone in (torch.ops.jaten.clone, torch.compile(lambda x: x.clone(), backend="jaten")):
        y = clone(x)
        assert y.data_ptr() != x.data_ptr()
        y.zero_()
        assert x.abs().sum() > 0


def test_equal_outputs_do_not_alias() -> None:
    a, b = torch.compile(lambda x: (x * 2, 2 * x), backend="jaten")(torch.ones(64))
    assert a.data_ptr() != b.data_ptr()
    c, d = torch.compile(lambda x: (torch.zeros(64) + x.sum(), torch.zeros(64)), backend="jaten")(torch.ones(64))
    d.fill_(3)
    assert (c == 64).all()


def test_returned_and_aliased_inputs() -> None:
    x = torch.randn(3, 4)
    same, view, none, number, out = torch.compile(lambda x: (x, x.t(), None, x.shape[0], x + 1), backend="jaten")(x)
    assert same is x and view._base is x and none is None and number == 3
    torch.testing.assert_close(out, x + 1)


def test_mutated_inputs() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y[:, 1].mul_(2)
        return x + y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    ex, ey = x.clone(), y.clone()
    expected = step(ex, ey)
    torch.testing.assert_close(torch.compile(step, backend="jaten")(x, y), expected)
    torch.testing.assert_close((x, y), (ex, ey))


def test_batch_norm_statistics_move() -> None:
    model, reference = (nn.BatchNorm1d(4) for _ in range(2))
    fn = torch.compile(model, backend="jaten")
    for _ in range(3):
        x = torch.randn(8, 4)
        torch.testing.assert_close(fn(x), reference(x))
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_backward_without_outputs_needed() -> None:
    x = torch.randn(4, requires_grad=True)
    y = torch.randn(4)
    out = torch.compile(lambda x, y: (x * y).sum(), backend="jaten")(x, y)
    out.backward()
    torch.testing.assert_close(x.grad, y)


def test_dropout_is_reproducible_and_fresh() -> None:
    fn = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend="jaten")
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = fn(x), fn(x)
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0} and 400 < (first == 0).sum() < 600
    torch.manual_seed(3)
    torch.testing.assert_close(fn(x), first)
    with torch.random.fork_rng():
        inner = fn(x)
    torch.testing.assert_close(fn(x), inner)


def test_two_random_ops_of_a_graph_differ() -> None:
    a, b = torch.compile(lambda: (torch.rand(100), torch.rand(100)), backend="jaten")()
    assert not torch.equal(a, b)


def test_dropout_gradient_uses_the_same_mask() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * 3

    def recomputed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(fn, x, use_reentrant=False)

    for f in (fn, recomputed):
        x = torch.ones(1000, requires_grad=True)
        y = torch.compile(f, backend="jaten")(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, y.detach())


def test_dynamic_sizes_retrace_nothing_and_compile_per_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounterWithBackend("jaten")
    compiles: list[int] = []
    compile_ = Compiler.compile
    monkeypatch.setattr(Compiler, "compile", lambda self, *given: compiles.append(1) or compile_(self, *given))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fn = torch.compile(model, backend=counter, dynamic=True)
    with torch.no_grad():
        for size in (3, 5, 7, 3, 5):
            x = torch.randn(size, 4)
            torch.testing.assert_close(fn(x), model(x))
    assert counter.frame_count == 1
    assert len(compiles) == 3


def test_dynamic_training() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    fn = torch.compile(model, backend="jaten", dynamic=True)
    for size in (3, 6):
        x = torch.randn(size, 4)
        expected = torch.autograd.grad(model(x).pow(2).sum(), list(model.parameters()))
        got = torch.autograd.grad(fn(x).pow(2).sum(), list(model.parameters()))
        torch.testing.assert_close(got, expected)


def test_index_out_of_range_raises_and_the_next_call_works() -> None:
    model = nn.Embedding(5, 3)
    fn = torch.compile(lambda i: model(i), backend="jaten")
    good = torch.tensor([0, 4])
    with torch.no_grad():
        fn(good)
        with pytest.raises(IndexError, match="index out of range") as caught:
            fn(torch.tensor([0, 5]))
        assert re.search(r"test_backend\.py:\d+: .*model\(i\)", str(caught.value))
        torch.testing.assert_close(fn(good), model(good))


def test_bad_shapes_raise_and_the_next_call_works() -> None:
    fn = torch.compile(lambda x, y: x @ y, backend="jaten")
    with pytest.raises(RuntimeError):
        fn(torch.ones(2, 3), torch.ones(4, 5))
    torch.testing.assert_close(fn(torch.ones(2, 3), torch.ones(3, 5)), torch.full((2, 5), 3.0))


@pytest.mark.parametrize("offset", [None, 5, 6])
def test_as_strided_of_a_part_counts_from_its_first_element(offset: int | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (3, 2), (2, 1), offset) * 2

    part = torch.arange(20.0)[5:]
    torch.testing.assert_close(torch.compile(program, backend="jaten")(part), program(part))


OF_MEMORY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t().as_strided((3, 2), (1, 2)),
    "permuted": lambda x: x.view(4, 3, 2).permute(1, 2, 0).as_strided((2, 4), (3, 5), 1),
    "made so": lambda x: (x.t() * 2).as_strided((5,), (3,)),
    "a part": lambda x: x[1:, ::2].as_strided((4, 2), (2, 1)),
    "one of several": lambda x: x.split(2)[1].as_strided((2, 2), (6, 3), 0),
    "expanded": lambda x: x[0].expand(4, 6).as_strided((6, 4), (1, 6)),
    "windows": lambda x: x.view(2, 12).t().contiguous().t().as_strided((2, 3, 4), (1, 4, 2)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", OF_MEMORY)
def test_as_strided_of_what_a_program_makes(name: str, device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return OF_MEMORY[name](x * 2).sin()

    results = []
    for where, run in (("cpu", program), (device, torch.compile(program, backend="jaten", fullgraph=True))):
        x = torch.arange(24.0).view(4, 6).to(where).requires_grad_()
        result = run(x)
        result.square().sum().backward()
        results.append((result.detach().cpu(), x.grad.cpu()))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("make", [lambda: torch.arange(20.0)[5:], lambda: torch.arange(40.0).view(4, 10)[:, ::2]])
def test_as_strided_beyond_the_elements_of_a_tensor_is_an_error(make: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(Exception, match="as_strided"):
        torch.compile(lambda x: torch.as_strided(x, (3, 2), (2, 1), 0) * 2, backend="jaten")(make())


_OF_COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "times": lambda x: 1j * x,
    "divided": lambda x: torch.complex(x, x) / 2j,
    "divides": lambda x: 1j / (x * x + 1),
    "added": lambda x: torch.add(x, x * 1j, alpha=2j),
    "to a power": lambda x: torch.complex(x, x) ** (1 + 2j),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", _OF_COMPLEX)
def test_gradients_with_complex_numbers(name: str) -> None:
    """They have the numbers' conjugates, which torch's graphs hold as operators on numbers."""
    fn = _OF_COMPLEX[name]
    x, y = (torch.linspace(0.5, 2, 4).requires_grad_() for _ in range(2))
    compiled(lambda x: fn(x).abs().sum())(x).backward()
    fn(y).abs().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grad", [False, True])
def test_parameters_beside_operators_with_effects(*, grad: bool) -> None:
    """Their order is a token, which torch counts among a graph's inputs when it says which of them are parameters."""
    weight, scale = torch.nn.Parameter(torch.eye(3) * 2), torch.nn.Parameter(torch.ones(3))

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (torch.linalg.inv(weight) + x) * scale

    run = compiled(fn)
    for n in range(3):
        x = torch.full((3,), float(n))
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(run(x), fn(x))
        if grad:
            got, expected = (torch.autograd.grad(f(x).square().sum(), (weight, scale)) for f in (run, fn))
            torch.testing.assert_close(got, expected)
        with torch.no_grad():
            weight.add_(0.5)
            scale.mul_(2)
    assert compiled(lambda x: torch.linalg.inv(weight))(x).shape == (3, 3)
