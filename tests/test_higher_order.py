"""`torch.cond`, loops, scans, regions and `flex_attention`: in compiled programs, and on the device `jax`."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as each_of
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import jaten_ops
from jaten_ops.kernels import flex_attention as kernels

randn = torch.randn

_TORCH = tuple(int(n) for n in torch.__version__.split(".")[:2])
# Where a scan's carry starts without a gradient, torch 2.11 itself loses those that go through it, or refuses it
_CARRIES_GRADIENTS = _TORCH >= (2, 13)
_TAKES_WRITES = pytest.mark.skipif(_TORCH < (2, 13), reason="torch 2.11 itself refuses a branch that writes")


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says of each of these that it is a prototype
        yield


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
    plus = lambda x: x + torch.tensor([1.0, 2, 3, 4], device=x.device)  # noqa: E731
    return torch.cond(x.sum() > 0, plus, lambda x: x - 1, (x,))


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
    "checkpoint": (_checkpointed, (randn(3, 4), randn(4, 4)), True),
}

PATHS = {
    "compiled": (True, "cpu"),
    "on the device": (False, "jax"),
    "compiled on the device": (True, "jax"),
}


def _compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="jaten", fullgraph=True, **options)


def _run(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], trains: bool, device: str = "cpu") -> list[Any]:
    """The results, and the gradients of the arguments."""
    given = [a.detach().clone().to(device).requires_grad_(trains) for a in args]
    results = tree_leaves(fn(*given))
    if trains:
        sum(r.float().sin().sum() for r in results if r.requires_grad).backward()
    return [*(r.detach().cpu() for r in results), *(None if a.grad is None else a.grad.cpu() for a in given)]


@functools.cache
def _expected(name: str, trains: bool) -> list[Any]:
    fn, args, _ = CASES[name]
    return _run(fn, args, trains)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("path", PATHS)
def test_values_and_gradients(path: str, name: str) -> None:
    fn, args, trains = CASES[name]
    compiles, device = PATHS[path]
    got = _run(_compiled(fn) if compiles else fn, args, trains, device)
    torch.testing.assert_close(got, _expected(name, trains), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_without_gradients(path: str) -> None:
    compiles, device = PATHS[path]
    for name in ("cond, true", "while"):
        fn, args, _ = CASES[name]
        with torch.no_grad():
            got = _run(_compiled(fn) if compiles else fn, args, False, device)
        torch.testing.assert_close(got, _expected(name, False))


# Attention


def _attention_case(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v, *_: flex_attention(q, k, v, **options)


def _biased(q, k, v, bias):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j + 15])


def _scaled_by_head(q, k, v, factor):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s / 4) * factor[h])


def _causal(q, k, v):
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i > 4), None, None, 16, 16, device=q.device)
    return flex_attention(q, k, v, block_mask=mask, return_lse=True)


def _of_documents(q, k, v):
    number = torch.arange(16, device=q.device) // 5
    mask = create_block_mask(lambda b, h, i, j: number[i] == number[j], 2, None, 16, 16, device=q.device)
    return flex_attention(q, k, v, block_mask=mask)


def _grouped(q, k, v):
    return flex_attention(q, k[:, :1], v[:, :1, :, :4], enable_gqa=True, return_lse=True, scale=0.3)


def _dense(q, k, v, scale=None, change=lambda s: s, kept=None):
    """What is meant, written out: the attention and the logarithm of the sum of exponentials."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = change(q @ k.transpose(-2, -1) * (scale or 1 / math.sqrt(q.shape[-1])))
    if kept is None:
        return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)
    some = kept.any(-1)
    filled = torch.where(some[:, None], scores.masked_fill(~kept, -math.inf), 0.0)  # no NaN in gradients
    weights = torch.where(some[:, None], torch.softmax(filled, -1), 0.0)
    return weights @ v, torch.where(some, filled.logsumexp(-1), -math.inf)


_I, _J = torch.arange(16)[:, None], torch.arange(16)
_TENSORS = (randn(2, 2, 16, 8), randn(2, 2, 16, 8), randn(2, 2, 16, 8))

# function, what it means, inputs
ATTENTION: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "plain": (_attention_case(), lambda q, k, v: _dense(q, k, v)[:1], _TENSORS),
    "bias": (_biased, lambda q, k, v, b: _dense(q, k, v, change=lambda s: s + b[:, _I - _J + 15])[:1],
             (*_TENSORS, randn(2, 31))),
    "scaled by head": (_scaled_by_head,
                       lambda q, k, v, f: _dense(q, k, v, change=lambda s: torch.tanh(s / 4) * f[:, None, None])[:1],
                       (*_TENSORS, randn(2))),
    "causal, rows without keys": (_causal, lambda q, k, v: _dense(q, k, v, kept=(_I >= _J) & (_I > 4)), _TENSORS),
    "documents": (_of_documents, lambda q, k, v: _dense(q, k, v, kept=_I // 5 == _J // 5)[:1], _TENSORS),
    "grouped heads": (_grouped, lambda q, k, v: _dense(q, k[:, :1], v[:, :1, :, :4], 0.3), _TENSORS),
}  # fmt: skip


def _finite(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: [torch.where(r.isinf(), 0, r) for r in tree_leaves(fn(*args))]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, path: str) -> None:
    fn, meant, args = ATTENTION[name]
    compiles, device = PATHS[path]
    trains = device == "jax"  # torch refuses gradients on the CPU
    got = _run(_finite(_compiled(fn) if compiles else fn), args, trains, device)
    torch.testing.assert_close(got, _run(_finite(meant), args, trains), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bias", "causal, rows without keys"])
def test_attention_for_some_queries_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_SCORES", 2 * 2 * 16 * 5)
    fn, meant, args = ATTENTION[name]
    got = _run(_finite(_compiled(fn)), args, True, "jax")
    torch.testing.assert_close(got, _run(_finite(meant), args, True), rtol=1e-4, atol=1e-5)


def test_gradients_of_what_a_score_mod_captures() -> None:
    def run(score_mod: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.to("jax") for t in _TENSORS)
        x = x.to("jax").requires_grad_()
        _compiled(lambda q, k, v, x: flex_attention(q, k, v, score_mod=score_mod(x)))(q, k, v, x).sin().sum().backward()
        return x.grad.cpu()

    one = torch.tensor(0.7, requires_grad=True)
    _dense(*_TENSORS, change=lambda s: s * one)[0].sin().sum().backward()
    torch.testing.assert_close(run(lambda x: lambda s, b, h, i, j: s * x, one.detach()), one.grad)
    for score_mod in (
        lambda x: lambda s, b, h, i, j: s * x[h, j] * x.mean(),
        lambda x: lambda s, b, h, i, j: s + x[h][j],
    ):
        with pytest.raises(jaten_ops.JatenError, match="index"):
            run(score_mod, randn(2, 16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_in_other_dtypes(dtype: torch.dtype) -> None:
    args = tuple(x.to(dtype) for x in _TENSORS)
    exact = _run(ATTENTION["documents"][1], tuple(x.double() for x in args), True)
    got = _run(_compiled(_of_documents), args, True, "jax")
    tolerance = 1e-6 if dtype == torch.float64 else 5e-2
    torch.testing.assert_close([g.double() for g in got], exact, rtol=tolerance, atol=tolerance)


# What kernels require, and draw, inside


def _row_of(x, i):
    return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[i * 0], (x, i))


def test_a_branch_that_is_not_taken_raises_nothing() -> None:
    out_of_range = torch.tensor([7])
    fn = _compiled(_row_of)
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
            _compiled(fn)(torch.ones(3, 2), index)
    torch.testing.assert_close(_compiled(scanned)(torch.ones(3, 2), torch.tensor([1, 2])), torch.full((2,), 2.0))


def test_random_numbers_differ_by_step_and_follow_the_seed() -> None:
    def fn(x):
        def drawn(x):
            return scan(lambda c, y: (c + 1, torch.rand_like(y)), torch.zeros((), device=x.device), x)[1]

        return torch.cond(x.sum() > 0, drawn, lambda x: x * 0 + torch.rand_like(x), (x,))

    compiled = _compiled(fn)
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
    y = _compiled(lambda x: region(x) * 2)(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(y, x.grad) and 0 < (y == 0).sum() < 100


# Programs around them


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.two(x).relu(), (x,))


@pytest.mark.parametrize("path", PATHS)
def test_parameters_in_branches(path: str) -> None:
    compiles, device = PATHS[path]
    model, x = _Gated(), randn(3, 4).abs()
    model(x).square().sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    moved = model.to(device)
    fn = _compiled(moved) if compiles else moved
    fn(x.to(device)).square().sum().backward()
    torch.testing.assert_close([p.grad.cpu() for p in moved.parameters()], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cond, true", "while", "scan", "map", "regions"])
def test_sizes_that_change(name: str) -> None:
    fn, (x, *rest), trains = CASES[name]
    compiled = _compiled(fn, dynamic=True)
    for rows in (3, 5):
        first = randn(rows, *x.shape[1:])
        args = (first, randn(rows, 4) if name == "cond, true" else rest[0])
        torch.testing.assert_close(_run(compiled, args, trains), _run(fn, args, trains), rtol=1e-4, atol=1e-5)


def test_attention_of_sizes_that_change() -> None:
    compiled = _compiled(_attention_case(score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1), dynamic=True)
    for length in (8, 12):
        q = randn(2, 2, length, 8)
        expected = flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)
        torch.testing.assert_close(compiled(q, q, q), expected, rtol=1e-4, atol=1e-5)


def test_sizes_are_not_rounded_where_a_loop_counts_them() -> None:
    fn = torch.compile(_scanned, backend="jaten", dynamic=True, options={"buckets": "powers of two"})
    w = randn(4, 4)
    for rows in (3, 5, 6):
        x = randn(rows, 4)
        torch.testing.assert_close(fn(x, w), _scanned(x, w), rtol=1e-4, atol=1e-5)


@torch.library.custom_op("jaten_test_higher_order::add_one_", mutates_args={"x"})
def _add_one_(x: torch.Tensor) -> None:
    x.add_(1)


def _writes(x):
    y = x.clone()
    _add_one_(y)
    return y


def _writes_in_a_branch(x):
    def true_fn(x):
        x.add_(1)
        return x.sin()

    return torch.cond(x.sum() > 0, true_fn, lambda x: x.cos(), (x,))


def _size_of_values(x):
    def body(i, y):
        return i + 1, y + torch.zeros(i).sum()

    return while_loop(lambda i, y: i < 3, body, (0, x))[1]


@pytest.mark.parametrize("fn", [_writes, pytest.param(_writes_in_a_branch, marks=_TAKES_WRITES), _size_of_values])
def test_what_cannot_be_run_says_what_to_do(fn: Callable[..., Any]) -> None:
    with torch.no_grad(), pytest.raises(Exception, match=r"got .*expected one") as caught:
        _compiled(fn)(torch.ones(3))
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
