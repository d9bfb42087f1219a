"""Outputs of compiled programs that lie in the memory of an input or another output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch

import jaten_ops  # noqa: F401  # the backend

from ...harness.passes import golden


def _long(size: int) -> torch.Tensor:
    return torch.arange(4.0 * size)


def _inside(size: int) -> torch.Tensor:
    return torch.arange(40.0)[size : 3 * size]


def _transposed(size: int) -> torch.Tensor:
    return torch.arange(20.0 * size).view(10, 2 * size)[1:].t()


VIEWS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[int], torch.Tensor]]] = {
    "chunk": (lambda x: x.chunk(4), _long),
    "split": (lambda x: x.split(x.size(0) // 2), _long),
    "tensor_split": (lambda x: x.tensor_split(3), _long),
    "slice": (lambda x: x[1 : x.size(0) - 1], _long),
    "slice of what has an offset": (lambda x: x[1 : x.size(0)], _inside),
    "slice of what is transposed": (lambda x: x[:, x.size(1) // 2 :], _transposed),
    "with steps": (lambda x: x[x.size(0) // 2 :: 2], _long),
    "nothing": (lambda x: x[x.size(0) :], _long),
    "select": (lambda x: x[x.size(0) - 1], _long),
    "narrow": (lambda x: x.narrow(0, x.size(0) // 2, 1), _long),
    "as_strided": (lambda x: x.as_strided((2,), (x.size(0) // 2,), 1), _long),
    "of a dtype": (lambda x: x[1 : x.size(0)].view(torch.int32), _long),
    "real": (lambda x: x.imag[1 : x.size(0)], lambda size: _long(size) + 1j),
    "slice after a write of what has an offset": (lambda x: x.add_(1)[1 : x.size(0)], _inside),
    "after a write": (lambda x: x.add_(1)[1 : x.size(0)], _long),
}


def _flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, list | tuple) else [result]


@pytest.mark.sampled(8)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("options", [None, {"buckets": "powers of two"}], ids=["", "buckets"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_inputs(name: str, options: dict[str, str] | None) -> None:
    view, make = VIEWS[name]
    compiled = torch.compile(view, backend="jaten", fullgraph=True, options=options)
    for size in (2, 3, 4, 5):
        inputs = make(size), make(size)
        expected, got = _flat(view(inputs[0])), _flat(compiled(inputs[1]))
        assert [t.stride() for t in got] == [t.stride() for t in expected]
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        for results in (expected, got):
            results[-1].add_(1)
        assert torch.equal(*inputs)  # a write to the view is one to the input


# On the device, programs see tensors row-major, and what is written to an input is stored there after the program.
COPIES = ("as_strided", "after a write", "slice after a write of what has an offset")


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [n for n in VIEWS if n not in COPIES])
def test_views_of_inputs_on_the_device(name: str, dynamic: bool) -> None:
    view, make = VIEWS[name]
    compiled = torch.compile(view, backend="jaten", fullgraph=True, dynamic=dynamic)
    for size in (2, 3, 4) if dynamic else (3,):
        inputs = make(size).to("jax"), make(size).to("jax")
        expected, got = _flat(view(inputs[0])), _flat(compiled(inputs[1]))
        for one, other in zip(got, expected, strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
        for results in (expected, got):
            results[-1].add_(1)
        assert torch.equal(*inputs)


@pytest.mark.usefixtures("fresh_dynamo")
def test_gradient_of_one_element_of_many() -> None:
    x = torch.arange(4.0, device="jax", requires_grad=True)
    y = torch.compile(lambda x: x[2::2], backend="jaten")(x)
    (y * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0, 2, 0]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_position_given_as_a_number(device: str) -> None:
    compiled = torch.compile(lambda cache, at: cache.narrow(1, at, 2), backend="jaten", fullgraph=True)
    cache = torch.arange(40.0, device=device).view(4, 10)
    for at in (2, 3, 5, 7):
        assert torch.equal(compiled(cache, at), cache.narrow(1, at, 2))


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("of_input", [True, False])
def test_gradients(of_input: bool) -> None:
    def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x if of_input else x * 2
        return y[1 : y.size(0) - 1], y[y.size(0) - 1], y.narrow(0, y.size(0) // 2, 1), y

    compiled = torch.compile(parts, backend="jaten", fullgraph=True)
    for size in (4, 6, 8):
        gradients = []
        for call in (parts, compiled):
            x = torch.arange(float(size), requires_grad=True)
            results = call(x)
            sum((t * k).sum() for k, t in enumerate(results, 1)).backward()
            gradients.append((x.grad, [t.detach() for t in results]))
        torch.testing.assert_close(*gradients, rtol=0, atol=0)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_offset(self) -> None:
        got = golden("output_offsets", lambda x: x[1 : x.size(0)], torch.ones(4), dynamic=True)
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: s77
arg1_1: float32[s77]
slice_1: float32[s77 - 1] = aten::slice.Tensor(arg1_1, 0, 1, arg0_1)
return (slice_1,)

offsets = {0: (1, 1)}""",
        )
