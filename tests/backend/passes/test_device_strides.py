"""Results of compiled programs on the device have the strides of eager calls there, also of inputs with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
import torch._dynamo

from ...harness.passes import golden

Program = Callable[[torch.Tensor], Any]

SHAPE = (4, 6)
INPUTS: dict[str, Program] = {
    "row-major": lambda x: x * 1,
    "transposed": lambda x: x.t().contiguous().t(),
    "with gaps": lambda x: torch.cat([x, x], 1)[:, ::2],
}
PROGRAMS: dict[str, Program] = {
    "with gaps": lambda x: (x * 2)[:, ::2],
    "expanded": lambda x: x.sum(0).expand(4, -1),
    "transposed with gaps": lambda x: (x * 2).t()[::2],
    "transposed": lambda x: (x * 2).t(),
    "of a transposed operand": lambda x: x.t() * 2,
    "one of several": lambda x: (x * 2).split(2, 1)[1],
    "a view of another": lambda x: (y := x * 2, y[:, ::2]),
    "a view of the input": lambda x: x[:, ::2],
    "one of several of the input": lambda x: x.split(2, 1)[1],
    "a clone": lambda x: x.clone(),
    "a clone of a transposed operand": lambda x: x.t().clone(),
    "a clone of a clone": lambda x: x.clone().t().clone(),
    "a contiguous clone": lambda x: x.t().contiguous(),
    "zeros like it": lambda x: torch.zeros_like(x.t()),
    "another dtype": lambda x: x.t().to(torch.float64),
    "complex numbers": lambda x: torch.view_as_complex((x * 2).view(4, 3, 2)).t(),
    "channels last": lambda x: (x * 2).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "written through a transposed view": lambda x: (y := x.clone(), y.t().mul_(2))[0],
    "a part of a transposed view written": lambda x: (y := x * 2, y.t()[1:].zero_())[0],
    "a row of a transposed clone written": lambda x: (y := x.t().clone(), y[1].fill_(3.0))[0],
    "a diagonal written": lambda x: (y := x.t() + 1, y.t().diagonal().copy_(x[:, 0]))[0],
    "written": lambda x: (x.mul_(2), x.t().clone())[1],
}


def _described(results: Any) -> list[Any]:
    results = results if isinstance(results, tuple) else (results,)
    return [(t.tolist(), t.stride(), t.dtype) for t in results]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("lies", INPUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_strides_are_those_of_eager_calls(program: str, lies: str) -> None:
    numbers = torch.arange(24.0).reshape(SHAPE).to("jax")
    expected = _described(PROGRAMS[program](INPUTS[lies](numbers)))
    compiled = torch.compile(PROGRAMS[program], backend="jaten", fullgraph=True)
    for _ in range(2):
        assert _described(compiled(INPUTS[lies](numbers))) == expected


def test_gradients_and_writes_of_results_with_gaps() -> None:
    x = torch.arange(24.0).reshape(SHAPE).to("jax").requires_grad_()
    y = torch.compile(lambda x: (x * 2)[:, ::2], backend="jaten")(x)
    (y * y).sum().backward()
    expected = torch.zeros(SHAPE)
    expected[:, ::2] = 8 * x.detach().cpu()[:, ::2]
    assert x.grad is not None and torch.equal(x.grad.cpu(), expected)
    with torch.no_grad():
        assert y.add_(1).tolist() == (2 * x[:, ::2] + 1).tolist()


@pytest.mark.parametrize("backend", ["jaten", "aot_eager"])
def test_a_view_that_an_input_does_not_have_is_an_error(backend: str) -> None:
    x = torch.ones(SHAPE, device="jax").t()
    with pytest.raises(Exception, match=r"Cannot view|view size is not compatible"):
        torch.compile(lambda x: x.view(-1) * 2, backend=backend)(x)
    assert torch.compile(lambda x: x.reshape(-1) * 2, backend=backend)(x).tolist() == [2.0] * 24


def _strided(x: torch.Tensor) -> Any:
    return (x * 2)[:, ::2], x.sin(), x.t().clone()


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_results(self) -> None:
        got = golden("device_strides", _strided, torch.ones(SHAPE, device="jax"))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[4, 6] on jax
mul: float32[4, 6] on jax = aten::mul.Tensor(arg0_1, 2)
slice_1: float32[4, 3] on jax = aten::slice.Tensor(mul, 1, 0, 9223372036854775807, 2)
sin: float32[4, 6] on jax = jaten::sin(arg0_1)
t: float32[6, 4] on jax = aten::t(arg0_1)
clone: float32[6, 4] on jax = jaten::clone(t)
return (slice_1, sin, clone)

result_strides = {0: [6, 2], 2: [1, 6]}""",
        )
