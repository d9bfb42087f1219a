"""Compiled programs whose sizes or numbers depend on values: captured whole, run as several executables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
import torch._dynamo
from torch._higher_order_ops import scan, while_loop
from torch.utils._pytree import tree_map_only

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.schema import RELEASE

from ...harness.passes import golden, unnumbered


def _arange(x: torch.Tensor) -> torch.Tensor:
    n = int(x.abs().max().item())
    torch._check(n >= 0)
    return torch.arange(n) * 2


def _in_a_branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x[x > 0].sum() * 2, lambda x: x[x < 0].prod() + x.nonzero().sum(), (x,))


def _in_a_loop(x: torch.Tensor) -> Any:
    def step(i: torch.Tensor, y: torch.Tensor) -> Any:
        return i - 1, torch.cond(y[0] > 4, lambda y: y - 1, lambda y: y + torch.masked_select(x, x > y).sum(), (y,))

    return while_loop(lambda i, y: i > 0, step, (torch.full((), 3, device=x.device), x * 1))[1] + x.abs()


def _in_a_scan(x: torch.Tensor) -> Any:
    return scan(lambda c, y: (c + y, x[x > y].sum() + c), torch.zeros((), device=x.device), x)[1] * 2


PROGRAMS: dict[str, Callable[..., Any]] = {
    "number": lambda x: x * x.sum().item(),
    "size": lambda x: torch.zeros(int(x.abs().sum().item())).shape[0] + x,
    "range": _arange,
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "nonzero": lambda x: x.nonzero().sum(1),
    "where": lambda x: torch.where(x > 0)[0] + 1,
    "two symbols": lambda x: (x[x > 0].sum(), x[x < 0] * 2),
    "largest": lambda x: (x[x > -9].max(), x[x > -9].amax(0), x[x > -9].argmin()),
    "interpolated": lambda x: torch.nn.functional.interpolate(x[x > 0].reshape(1, 1, -1), scale_factor=2.0),
    "written": lambda x: x.clone().masked_fill_(x > 0, 1.0) + x[x > 100].sum(),
    "branch": _in_a_branch,
    "loop": _in_a_loop,
    "scan": _in_a_scan,
    "ordered effect": lambda x: torch.linalg.cholesky(torch.eye(2) * x[x > 0].sum()),
}

_LOSES_SYMBOLS = pytest.mark.skipif(
    RELEASE >= (2, 14), reason="torch 2.14 itself captures no scan with sizes that depend on values, by any backend"
)
SCAN = pytest.param("scan", marks=_LOSES_SYMBOLS)

DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    "masked_select": lambda x: torch.masked_select(x, x > 0) * 2,
    "mask": lambda x: x[x > 0] * 2,
    "indices": lambda x: x[x.nonzero().squeeze(1)].sin(),
    "repeats": lambda x: torch.repeat_interleave(x, torch.tensor([1, 2, 0, 1, 1])),
    "dropout": lambda x: torch.nn.functional.dropout(x[x > 0], 0.0),
}


@pytest.fixture(autouse=True)
def _whole() -> Any:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def _input(shift: float = 0.0) -> torch.Tensor:
    return torch.tensor([1.0, -2.0, 3.0, 3.0, -4.0]) + shift


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [SCAN if n == "scan" else n for n in PROGRAMS])
def test_values(name: str) -> None:
    compiled = torch.compile(PROGRAMS[name], backend="jaten", fullgraph=True)
    for shift in (0.0, 2.5, 0.0):
        torch.testing.assert_close(compiled(_input(shift)), PROGRAMS[name](_input(shift)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    compiled = torch.compile(DIFFERENTIABLE[name], backend="jaten", fullgraph=True)
    for shift in (0.0, 2.5):
        grads = []
        for run in (compiled, DIFFERENTIABLE[name]):
            x = _input(shift).requires_grad_()
            run(x).square().sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["mask", "masked_select", "branch", "loop", SCAN, "largest", "interpolated"])
def test_on_the_device_jax(name: str) -> None:
    program = (DIFFERENTIABLE | PROGRAMS)[name]
    compiled = torch.compile(program, backend="jaten", fullgraph=True)
    for shift in (0.0, 2.5):
        got = tree_map_only(torch.Tensor, torch.Tensor.cpu, compiled(_input(shift).to("jax")))
        torch.testing.assert_close(got, program(_input(shift)))


def _sum_and_product_of_none(x: torch.Tensor) -> Any:
    empty = torch.empty(2, 3, device="meta")
    return x + 1, empty.t() @ empty, torch.zeros_like(empty, device=x.device) + x


WITHOUT_VALUES: dict[str, Callable[..., Any]] = {
    "moved": lambda x: (x + 1, (x * 3).to("meta") * 2),
    "made": _sum_and_product_of_none,
    "made like": lambda x: (torch.empty_like(x, device="meta"), x.new_zeros(2, device="meta") + 1, torch.rand_like(x)),
    "constant": lambda x: (torch.tensor([1.0], device="meta"), x * 2),
    "operand": lambda x: (x.to("meta") + torch.ones(3, device="meta")).sum(),
}


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", WITHOUT_VALUES)
def test_tensors_of_the_device_meta(name: str, device: str) -> None:
    """They have no values to compute, in programs that compute others."""
    x = torch.randn(3).to(device)
    expected = tree_map_only(torch.Tensor, _form, WITHOUT_VALUES[name](x))
    for given in (x, x.clone().requires_grad_()):
        got = torch.compile(WITHOUT_VALUES[name], backend="jaten")(given)
        assert tree_map_only(torch.Tensor, _form, got) == expected


def _form(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_inputs_of_the_device_meta(device: str) -> None:
    """A program computes with them, writes to them, hands them back, or does nothing with them."""

    def fn(x: torch.Tensor, weight: torch.Tensor, unused: torch.Tensor, buffer: torch.Tensor) -> Any:
        return x.sin(), weight.t() @ weight, weight, buffer.add_(1)[1:]

    weight, unused, buffer = (torch.empty(2, 3, device="meta", requires_grad=i == 0) for i in range(3))
    x = torch.randn(3).to(device)
    sines, product, given, view = torch.compile(fn, backend="jaten", fullgraph=True)(x, weight, unused, buffer)
    torch.testing.assert_close(sines.cpu(), x.cpu().sin())
    assert product.shape == (3, 3) and product.requires_grad and given is weight and buffer._version == 1
    assert view.shape == (1, 3) and view._base is buffer
    product.sum().backward()
    assert weight.grad is not None and weight.grad.device.type == "meta"


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_linearize(device: str) -> None:
    """torch traces it on the device `meta`."""

    def fn(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.func.linearize(lambda x: x.sin() * 2, x)[1](v)

    x, v = torch.randn(2, 3).to(device)
    torch.testing.assert_close(torch.compile(fn, backend="jaten")(x, v), x.cos() * 2 * v)


def test_a_size_out_of_range_is_an_error_and_the_next_call_works() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        n = int(x.sum().item())
        torch._check(n <= 3)
        return torch.ones(n) + x.sum()

    compiled = torch.compile(program, backend="jaten", fullgraph=True)
    assert compiled(torch.tensor([1.0, 1.0])).shape == (2,)
    with pytest.raises(RuntimeError):
        compiled(torch.tensor([5.0, 5.0]))
    assert compiled(torch.tensor([1.0, 2.0])).shape == (3,)


@pytest.mark.parametrize("start", [0, 3, -2])
def test_a_view_that_starts_where_a_number_says(start: int) -> None:
    """The result is a view of the input, and its offset is a symbol."""
    x = torch.arange(20.0).view(5, 4)
    torch._dynamo.reset()
    view = torch.compile(lambda x, s: x.narrow(0, s, 2), backend="jaten", fullgraph=True)(x, torch.tensor(start))
    assert torch.equal(view, x.narrow(0, start, 2))
    view.zero_()
    assert x.narrow(0, start, 2).sum() == 0


def test_split_where_numbers_say() -> None:
    x, at = torch.arange(20.0).view(5, 4), torch.tensor([1, 3])
    torch._dynamo.reset()
    parts = torch.compile(lambda x, at: x.tensor_split(at), backend="jaten", fullgraph=True)(x, at)
    assert all(torch.equal(g, e) for g, e in zip(parts, x.tensor_split(at), strict=True))


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_nonzero(self) -> None:
        got = golden("data_dependent_splits", lambda x: x.nonzero() + 1, torch.ones(2))
        self.assertExpectedInline(
            unnumbered(got, "add"),
            """\
--- inference
arg0_1: float32[2]
nonzero: int64[u0, 1] = jaten::nonzero(arg0_1)
sym_size_int: u0 = aten::sym_size.int(nonzero, 0)
ge: u0 >= 0 = ge(sym_size_int, 0)
_assert_scalar = jaten::_assert_scalar(ge, Runtime assertion failed for expression u0 >= 0 on node 'ge')
le: u0 <= 2 = le(sym_size_int, 2)
_assert_scalar_1 = jaten::_assert_scalar(le, Runtime assertion failed for expression u0 <= 2 on node 'le')
add: int64[u0, 1] = jaten::add.Tensor(nonzero, 1)
return (add,)

parts = {'arg0_1': 0, 'nonzero': 1, 'sym_size_int': 2, 'ge': 2, '_assert_scalar': 2, 'le': 2, '_assert_scalar_1': 2, 'add': 2, 'output': 2}""",
        )
