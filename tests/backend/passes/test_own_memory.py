"""Operators that look at how tensors lie in memory, in graphs: as eager torch, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable

import expecttest
import pytest
import torch

from jaten_ops.schema import RELEASE

from ...harness.passes import golden


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x.t().as_strided((2,), (3,), 5).sin()


def _complex(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x[:, :2], x[:, 1:]) * 2


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of a view": lambda x: x.t()[1:].as_strided((2, 2), (1, 2), 4).sin(),
    "of what begins later": lambda x: (x * 2)[1:].as_strided((3,), (2,)),
    "of the result of another": lambda x: x.as_strided((4,), (1,), 3).as_strided((2,), (2,), 5).exp(),
    "a copy": lambda x: torch.as_strided_copy(x.t(), (2, 3), (1, 2), 4) * x.sum(),
    "of a conjugate": lambda x: (_complex(x).conj().as_strided((2,), (1,)) * 2).imag,
    "of a part of a conjugate": lambda x: _complex(x).conj()[1:, 0].as_strided((2, 2), (1, 2)).imag.sin(),
    "of a conjugated part": lambda x: _complex(x)[1:, 0].conj().as_strided((2, 2), (1, 2)).abs() * 2,
    "of conjugates of conjugates": lambda x: _complex(x)[1:].conj()[:, 0].conj().as_strided((2, 2), (1, 2)).imag.sin(),
    "of parts of numbers": lambda x: torch.view_as_real(_complex(x)[1:]).as_strided((3,), (2,)).sin(),
    "of the imaginary part": lambda x: _complex(x)[1:].conj().imag.as_strided((3,), (2,)).sin(),
    "of numbers of parts": lambda x: (
        torch.view_as_complex((x * 2)[:, :2].clone()[1:]).as_strided((2,), (2,)).imag.sin()
    ),
    "of bits": lambda x: (x * 2).detach()[1:].view(torch.int32).as_strided((3,), (2,)) * x.sum(),
    "in a branch": lambda x: torch.cond(x.sum() > 100, _branch, lambda x: x.as_strided((2,), (1,), 3).cos(), (x,)),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_without_compiling(name: str, begin: int, trains: bool) -> None:
    """Offsets count from where the memory begins, where an input does not."""
    fn = PROGRAMS[name]
    memory = torch.arange(20.0)
    given = [memory.clone()[begin:][:12].view(4, 3).requires_grad_(trains) for _ in range(2)]
    expected, got = fn(given[0]), torch.compile(fn, backend="jaten")(given[1])
    torch.testing.assert_close(got, expected)
    if trains:
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y, x in zip((expected, got), given, strict=True)]
        torch.testing.assert_close(gradients[1], gradients[0])


_REFUSED = pytest.mark.skipif(
    RELEASE >= (2, 15),
    reason="torch 2.15 itself, with aot_eager too, differentiates no such write to a transposed tensor",
)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=_REFUSED)])
def test_writes(trains: bool) -> None:
    """They go to the places in memory that they name, whatever the order of the dimensions there."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2
        y.as_strided((2, 2), (1, 2)).mul_(-1)
        x.as_strided((2, 2), (3, 1)).add_(x.sum())
        return y, torch.as_strided_scatter(x.detach(), y[0, :2], (2,), (5,)), x.exp()

    def of(call: Callable[..., tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        leaf = torch.arange(20.0, requires_grad=trains)
        x = (leaf / 20)[8:].view(4, 3).t()
        results = call(x)
        return [*results, x, *([torch.autograd.grad(results[0].sum() + x.sum(), leaf)[0]] if trains else [])]

    expected, got = of(fn), of(torch.compile(fn, backend="jaten"))
    torch.testing.assert_close(got, expected)
    assert [t.stride() for t in got] == [t.stride() for t in expected]


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_write_to_every_second_element_is_refused() -> None:
    with pytest.raises(Exception, match="contiguous"):
        torch.compile(lambda x: torch.as_strided_scatter(x[:, ::2], x[0, :2], (2,), (1,)), backend="jaten")(
            torch.ones(4, 6)
        )


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_part_that_no_whole_is_made_of() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex((x * 2).view(-1, 2)[1:]).as_strided((2,), (2,)).abs()

    with pytest.raises(Exception, match="a part of what view_as_complex takes"):
        torch.compile(fn, backend="jaten")(torch.ones(4, 3))


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_as_strided(self) -> None:
        got = golden("own_memory", PROGRAMS["of a view"], torch.ones(4, 3, requires_grad=True))
        self.assertExpectedInline(
            got,
            """\
--- joint
primals_1: float32[4, 3]
tangents_1: float32[2, 2]
t: float32[3, 4] = aten::t(primals_1)
slice_1: float32[2, 4] = aten::slice.Tensor(t, 0, 1, 9223372036854775807)
as_strided: float32[2, 2] = aten::as_strided(slice_1, [2, 2], [1, 2], 4)
sin: float32[2, 2] = aten::sin(as_strided)
cos: float32[2, 2] = aten::cos(as_strided)
mul: float32[2, 2] = aten::mul.Tensor(tangents_1, cos)
new_zeros: float32[11] = aten::new_zeros(mul, [11])
as_strided_1: float32[2, 2] = aten::as_strided(new_zeros, [2, 2], [1, 2], 3)
copy: float32[2, 2] = aten::copy(as_strided_1, mul)
as_strided_scatter: float32[11] = aten::as_strided_scatter(new_zeros, copy, [2, 2], [1, 2], 3)
as_strided_4: float32[2, 4] = aten::as_strided(as_strided_scatter, [2, 4], [1, 3], 0)
slice_backward: float32[3, 4] = aten::slice_backward(as_strided_4, [3, 4], 0, 1, 9223372036854775807, 1)
t_1: float32[4, 3] = aten::t(slice_backward)
return [sin, t_1]

=>

primals_1: float32[4, 3]
tangents_1: float32[2, 2]
t: float32[3, 4] = aten::t(primals_1)
slice_1: float32[2, 4] = aten::slice.Tensor(t, 0, 1, 9223372036854775807)
as_strided: float32[2, 2] = aten::as_strided(primals_1, [2, 2], [1, 2], 4)
sin: float32[2, 2] = aten::sin(as_strided)
cos: float32[2, 2] = aten::cos(as_strided)
mul: float32[2, 2] = aten::mul.Tensor(tangents_1, cos)
new_zeros: float32[11] = aten::new_zeros(mul, [11])
as_strided_1: float32[2, 2] = aten::as_strided(new_zeros, [2, 2], [1, 2], 3)
copy: float32[2, 2] = aten::copy(as_strided_1, mul)
as_strided_scatter: float32[11] = aten::as_strided_scatter(new_zeros, copy, [2, 2], [1, 2], 3)
as_strided_4: float32[2, 4] = aten::as_strided(as_strided_scatter, [2, 4], [1, 3], 0)
slice_backward: float32[3, 4] = aten::slice_backward(as_strided_4, [3, 4], 0, 1, 9223372036854775807, 1)
t_1: float32[4, 3] = aten::t(slice_backward)
return [sin, t_1]""",
        )

    def test_as_strided_of_an_input_that_begins_later(self) -> None:
        got = golden("rename_operators", PROGRAMS["of a view"], torch.ones(20)[3:15].view(4, 3))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[4, 3]
t: float32[3, 4] = aten::t(arg0_1)
slice_1: float32[2, 4] = aten::slice.Tensor(t, 0, 1, 9223372036854775807)
as_strided: float32[2, 2] = aten::as_strided(arg0_1, [2, 2], [1, 2], 4)
sin: float32[2, 2] = aten::sin(as_strided)
return (sin,)

=>

arg0_1: float32[4, 3]
t: float32[3, 4] = jaten::t(arg0_1)
slice_1: float32[2, 4] = jaten::slice.Tensor(t, 0, 1, 9223372036854775807)
as_strided: float32[2, 2] = jaten::as_strided(arg0_1, [2, 2], [1, 2], 1)
sin: float32[2, 2] = jaten::sin(as_strided)
return (sin,)""",
        )
