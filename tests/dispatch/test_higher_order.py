"""`torch.cond`, loops, scans and regions: in compiled programs, and on the device `jax`."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as each_of
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import jaten_ops

from ..harness.crossings import crossed
from ..harness.paths import CLOSE, PATHS, compile_whole, randn, run

_TORCH = tuple(int(n) for n in torch.__version__.split(".")[:2])
# Where a scan's carry starts without a gradient, torch 2.11 itself loses those that go through it, or refuses it
_CARRIES_GRADIENTS = _TORCH >= (2, 13)
_TAKES_WRITES = pytest.mark.skipif(_TORCH < (2, 13), reason="torch 2.11 itself refuses a branch that writes")


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _zero(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64, device=x.device)


def _branches(x, y):
    a, b = torch.cond(x.sum() > 0, lambda x, y: (x * y, y + 1), lambda x, y: ((x - y).sin(), y * 3), (x, y))
    return a + b.sum(), b


def _nested(x):
    def positive(x):
        return torch.cond((x.max() > 1).reshape(1), lambda x: x * x.shape[0], lambda x: x.exp(), (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x.cos(), (x,))


def _holding(x):
    def plus(x):
        return x + torch.tensor([1.0, 2, 3, 4], device=x.device)

    return torch.cond(x.sum() > 0, plus, lambda x: x - 1, (x,))


def _cond_of_each(x):
    return torch.vmap(lambda t: torch.cond(t.sum() > 0, lambda t: t * 2, lambda t: t * 3, (t,)))(x)


def _number_of_a_branch(x):
    n, y = torch.cond(x.sum() > 0, lambda x: (2, x * 2), lambda x: (3, x * 3), (x,))
    return y + n


def _transposed(x):
    return torch.cond(x.sum() > 0, lambda x: (x * 2).t(), lambda x: x.exp().t(), (x,))


def _recurrence(x, w):
    return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, torch.tanh(h @ w)), (_zero(x), x))[1]


def _until_large(x):
    return while_loop(lambda x: x.abs().sum() < 100, lambda x: (x * 2 + 1,), (x,))[0]


def _indexed_by_a_number(x, rows):
    return while_loop(lambda i, y: i < rows.shape[0], lambda i, y: (i + 1, y + rows[i] * i), (0, x))[1]


def _number_of_steps(x):
    steps, y = while_loop(lambda i, x: x.sum() < 100, lambda i, x: (i + 1, x * 2), (0, x))
    return y + steps


def _scanned(x, w):
    def step(h, x):
        h = torch.tanh(h @ w + x)
        return h, h * 2

    return scan(step, torch.zeros(4, device=x.device), x)


def _cond_in_a_scan(x):
    def step(h, x):
        h = torch.cond(x.sum() > 0, lambda h, x: h + x, lambda h, x: h - x, (h, x))
        return h, h * 2

    return scan(step, torch.zeros(4, device=x.device), x)


def _scanned_in_reverse(x, w):
    def step(carry, x):
        a = carry["a"] * 0.5 + x[0]
        return {"a": a}, (a + w.sum(), x[1] + 1)

    return scan(step, {"a": x[0] * 1}, (x, x * 2), reverse=True)[1]


def _scan_in_a_branch(x):
    def sums(x):
        return scan(lambda c, y: (c + y, c * y), torch.zeros(4, device=x.device), x)[1]

    return torch.cond(x.sum() > 0, sums, lambda x: x.sin(), (x,))


def _associative(x, y):
    def pair(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return associative_scan(pair, (x, y), dim=1, reverse=True, combine_mode="generic")


def _mapped(x, y):
    return each_of(lambda a, b: (a * b).sin(), x, y)


@torch.compiler.nested_compile_region
def _region(x, w):
    return torch.tanh(x @ w) + x.shape[0]


def _regions(x, w):
    return _region(_region(x, w), w)


def _checkpointed(x, w):
    return checkpoint(lambda x: torch.tanh(x @ w), x, use_reentrant=False) @ w


def _in_a_wider_dtype(x, y):
    return torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, x, y)


# function, inputs, whether torch gives gradients
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], bool]] = {
    "cond, true": (_branches, (randn(3, 4).abs(), randn(3, 4)), True),
    "cond, false": (_branches, (-randn(3, 4).abs(), randn(3, 4)), True),
    "cond in cond": (_nested, (randn(3, 4).abs() * 3,), True),
    "cond, constant": (_holding, (randn(3, 4).abs(),), True),
    "cond, number": (_number_of_a_branch, (randn(3, 4),), False),
    "cond, strides": (_transposed, (randn(3, 4),), True),
    "while": (_recurrence, (randn(3, 4), randn(4, 4)), True),
    "while, values decide": (_until_large, (randn(3, 4),), True),
    "while, number as index": (_indexed_by_a_number, (randn(4), randn(5, 4)), False),
    "while, number as result": (_number_of_steps, (randn(3, 4).abs(),), False),
    "scan": (_scanned, (randn(5, 4), randn(4, 4)), _CARRIES_GRADIENTS),
    "scan of cond": (_cond_in_a_scan, (randn(5, 4),), True),
    "scan, reverse": (_scanned_in_reverse, (randn(5, 4), randn(4, 4)), True),
    "scan in cond": (_scan_in_a_branch, (randn(5, 4).abs(),), False),
    "associative scan": (_associative, (randn(3, 5), randn(3, 5)), True),
    "map": (_mapped, (randn(5, 4), randn(4)), True),
    "regions": (_regions, (randn(3, 4), randn(4, 4)), True),
    "out_dtype": (_in_a_wider_dtype, (torch.full((4, 4), 99, dtype=torch.int8),) * 2, False),
    "cond of each example": (_cond_of_each, (randn(5, 4),), False),
    "cond of each example of each": (torch.vmap(_cond_of_each), (randn(3, 5, 4),), False),
    "checkpoint": (_checkpointed, (randn(3, 4), randn(4, 4)), True),
}


@functools.cache
def _expected(name: str, trains: bool) -> list[Any]:
    fn, args, _ = CASES[name]
    return run(fn, args, trains)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("path", "name"), crossed(PATHS, CASES, always=lambda path, name: path == "compiled"))
def test_values_and_gradients(path: str, name: str) -> None:
    fn, args, trains = CASES[name]
    compiles, device = PATHS[path]
    got = run(compile_whole(fn) if compiles else fn, args, trains, device)
    torch.testing.assert_close(got, _expected(name, trains), **CLOSE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", PATHS)
def test_without_gradients(path: str) -> None:
    compiles, device = PATHS[path]
    for name in ("cond, true", "while"):
        fn, args, _ = CASES[name]
        with torch.no_grad():
            got = run(compile_whole(fn) if compiles else fn, args, False, device)
        torch.testing.assert_close(got, _expected(name, False))


# What kernels require, and draw, inside


def _row_of(x, i):
    return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[i * 0], (x, i))


def test_a_branch_that_is_not_taken_raises_nothing() -> None:
    out_of_range = torch.tensor([7])
    fn = compile_whole(_row_of)
    torch.testing.assert_close(fn(-torch.ones(3, 2), out_of_range), -torch.ones(1, 2))
    with pytest.raises(IndexError, match=r"out of bounds for dimension 0 with size 3.*test_higher_order"):
        fn(torch.ones(3, 2), out_of_range)


def test_errors_in_loops_scans_and_scores() -> None:
    def loop(x, i):  # what it waits for never comes
        return while_loop(
            lambda n, y: y.sum() >= 0, lambda n, y: (n + 1, y + x[n.reshape(1) + i].sum()), (_zero(x), x.sum())
        )[1]

    def scanned(x, i):
        return scan(lambda c, n: (c + x[n.reshape(1)][0], c * 1), x[0] * 0, i)[0]

    def scores(x, i):
        q = x.reshape(1, 1, 3, 2)
        return flex_attention(q, q, q, score_mod=lambda s, b, h, m, n: s + i[m + n])

    for fn, index in ((loop, torch.tensor(0)), (scanned, torch.tensor([1, 5])), (scores, torch.ones(4))):
        with pytest.raises(IndexError, match="out of bounds"):
            compile_whole(fn)(torch.ones(3, 2), index)
    torch.testing.assert_close(compile_whole(scanned)(torch.ones(3, 2), torch.tensor([1, 2])), torch.full((2,), 2.0))


def test_random_numbers_differ_by_step_and_follow_the_seed() -> None:
    def fn(x):
        def drawn(x):
            return scan(lambda c, y: (c + 1, torch.rand_like(y)), torch.zeros((), device=x.device), x)[1]

        return torch.cond(x.sum() > 0, drawn, lambda x: x * 0 + torch.rand_like(x), (x,))

    compiled = compile_whole(fn)
    for x in (torch.ones(4, 100), -torch.ones(4, 100)):
        torch.manual_seed(3)
        first, second = compiled(x), compiled(x)
        torch.manual_seed(3)
        assert torch.equal(compiled(x), first) and not torch.equal(first, second)
        assert 0.4 < first.mean() < 0.6 and len(first.unique(dim=0)) == 4


def test_dropout_in_a_region_is_the_same_backward() -> None:
    @torch.compiler.nested_compile_region
    def region(x):
        return nn.functional.dropout(x, 0.5)

    x = torch.ones(100, requires_grad=True)
    y = compile_whole(lambda x: region(x) * 2)(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(y, x.grad) and 0 < (y == 0).sum() < 100


# Programs around them


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.two(x).relu(), (x,))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", PATHS)
def test_parameters_in_branches(path: str) -> None:
    compiles, device = PATHS[path]
    model, x = _Gated(), randn(3, 4).abs()
    model(x).square().sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    moved = model.to(device)
    fn = compile_whole(moved) if compiles else moved
    fn(x.to(device)).square().sum().backward()
    torch.testing.assert_close([p.grad.cpu() for p in moved.parameters()], expected, **CLOSE)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["cond, true", "while", "scan", "map", "regions"])
def test_sizes_that_change(name: str) -> None:
    fn, (x, *rest), trains = CASES[name]
    compiled = compile_whole(fn, dynamic=True)
    for rows in (3, 5):
        first = randn(rows, *x.shape[1:])
        args = (first, randn(rows, 4) if name == "cond, true" else rest[0])
        torch.testing.assert_close(run(compiled, args, trains), run(fn, args, trains), **CLOSE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", PATHS)
def test_a_number_chooses_the_branch_backward_too(path: str) -> None:
    def chosen(x: torch.Tensor, number: int) -> torch.Tensor:
        return torch.cond(number < 20 and number >= 0, lambda x: x.sin(), lambda x: x * number, (x,))

    compiles, device = PATHS[path]
    compiled = compile_whole(chosen) if compiles else chosen
    for number in (1, 30, 7, 21):
        args = (randn(3, 4),)
        one, two = (functools.partial(fn, number=number) for fn in (compiled, chosen))
        torch.testing.assert_close(run(one, args, True, device), run(two, args, True), **CLOSE)


def test_sizes_are_not_rounded_where_a_loop_counts_them() -> None:
    fn = torch.compile(_scanned, backend="jaten", dynamic=True, options={"buckets": "powers of two"})
    w = randn(4, 4)
    for rows in (3, 5, 6):
        x = randn(rows, 4)
        torch.testing.assert_close(fn(x, w), _scanned(x, w), **CLOSE)


def _writes_in_a_branch(x):
    def true_fn(x):
        x.add_(1)
        return x.sin()

    return torch.cond(x.sum() > 0, true_fn, lambda x: x.cos(), (x,))


def _size_of_values(x):
    def body(i, y):
        return i + 1, y + torch.zeros(i).sum()

    return while_loop(lambda i, y: i < 3, body, (0, x))[1]


@pytest.mark.parametrize("fn", [pytest.param(_writes_in_a_branch, marks=_TAKES_WRITES), _size_of_values])
def test_what_cannot_be_run_says_what_to_do(fn: Callable[..., Any]) -> None:
    with torch.no_grad(), pytest.raises(Exception, match=r"got .*expected one") as caught:
        compile_whole(fn)(torch.ones(3))
    assert any(isinstance(e, jaten_ops.JatenError) for e in (caught.value, caught.value.__cause__)) or (
        "UnsupportedInputError" in str(caught.value)
    )


_PROGRAM = """
import torch
from torch._higher_order_ops import while_loop

@torch.compile(backend="jaten")
def fn(x, w):
    y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x - 1, (x,))
    return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h @ w), (torch.zeros((), dtype=torch.int64), y))[1]

w = torch.eye(3) * 2
print([fn(torch.full((3, 3), v), w).sum().item() for v in (1.0, -1.0)])
"""


@pytest.mark.exhaustive
def test_a_new_process(tmp_path: Path) -> None:
    environment = os.environ | {"JATEN_CACHE_DIR": str(tmp_path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
    assert eval(outputs[0]) == pytest.approx([9 * 8 * math.sin(1), -9 * 8 * 2])


def test_branches_whose_operators_raise_for_values() -> None:
    """torch orders such operators by tokens, which it leaves in the graph. With gradients it captures none of them."""

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        inverse = torch.linalg.inv
        return torch.cond(b.sum() > 0, inverse, lambda x: inverse(x) * 2, (a,))

    compiled = torch.compile(program, backend="jaten", fullgraph=True)
    a = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(3)
    with torch.no_grad():
        for b in (torch.ones(2), -torch.ones(2)):
            torch.testing.assert_close(compiled(a, b), torch.linalg.inv(a) * (1 if b[0] > 0 else 2))


def _prints(x):
    y = x * 2
    torch.ops.higher_order.print("first {} {}", y, 3)
    y.add_(1)
    torch.ops.higher_order.print("then {y}", y=y)
    torch.ops.higher_order.print("no values")
    return y * x


@pytest.mark.sampled(3)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_prints_in_turn_at_each_call(path: str, trains: bool, capsys: pytest.CaptureFixture[str]) -> None:
    compiles, device = PATHS[path]
    x = torch.tensor([1.0, 2.0])
    expected = run(_prints, (x,), trains)
    expected_text = capsys.readouterr().out
    fn = compile_whole(_prints) if compiles else _prints
    for _ in range(2):
        torch.testing.assert_close(run(fn, (x,), trains, device), expected)
        text = capsys.readouterr().out
        for of_tensors in (", device='jax:0'", ", grad_fn=<MulBackward0>", ", grad_fn=<AddBackward0>"):
            text, expected_text = text.replace(of_tensors, ""), expected_text.replace(of_tensors, "")
        assert text == expected_text
