"""Inputs lent from torch's memory call after call: the same memory with other values, strides, signs and owners."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import jax
import pytest
import torch

from jaten_ops.backend import lent_inputs
from tests.harness.crossings import crossed


def _base(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(64).sub(20).to(dtype).reshape(8, 8)


def _kept(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """One tensor, written to between the calls."""
    x = _base(dtype)
    for i in range(5):
        yield x
        x[i] = i % 2


def _made_anew(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Tensors of which each is freed before the next is made, and mostly lies in its memory."""
    for i in range(6):
        yield _base(dtype).roll(i)
        gc.collect()


def _by_turns(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    pair = _base(dtype), _base(dtype).roll(3)
    for i in (0, 0, 0, 1, 0, 1, 1, 1):
        yield pair[i]


def _transposed(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    x = _base(dtype)
    yield from (x, x, x, x.t(), x, x.t())


def _strided(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Parts of one memory that begin at its address, of the same shape."""
    x = _base(dtype)
    rows = x.reshape(16, 4)[:4]
    yield from (rows, rows, rows, x[:4, :4], rows, x[::2, ::2], x[:4, :4])


def _misaligned(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    x = torch.cat([_base(dtype).reshape(-1), _base(dtype)[0]])[1:65].reshape(8, 8)
    for i in range(4):
        yield x
        x[i] = 1


def _negated(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Values, and their lazy negation in the same memory."""
    x = _base(dtype)
    yield from (x, x, x, torch._neg_view(x) if dtype.is_floating_point else x, x)


def _resized(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Memory that is freed and used again."""
    x = _base(dtype)
    for i in range(3):
        yield x
        x.untyped_storage().resize_(0)
        other = _base(dtype).roll(i)
        yield other
        x = _base(dtype).roll(-i)


def _of_nothing(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """No elements, and so no memory."""
    for rows in (0, 0, 0, 8, 0):
        yield _base(dtype)[:, :rows].contiguous()


WAYS: list[Callable[[torch.dtype], Iterator[torch.Tensor]]] = [
    _kept, _made_anew, _by_turns, _transposed, _strided, _misaligned, _negated, _resized, _of_nothing,
]  # fmt: skip
DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]


def _function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.where(x > 1, x, x + x), x.clone()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("way", "dtype", "dynamic"), crossed(WAYS, DTYPES, [None, True]))
def test_values(way: Callable[[torch.dtype], Iterator[torch.Tensor]], dtype: torch.dtype, dynamic: bool | None) -> None:
    fn = torch.compile(_function, backend="jaten", dynamic=dynamic)
    for x in way(dtype):
        got, expected = fn(x), _function(x)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert not x.numel() or got[1].data_ptr() != x.data_ptr()
        del x


def test_gradients_are_lent_as_well() -> None:
    w = torch.randn(8, 8, requires_grad=True)
    fn = torch.compile(lambda x: (x @ w).tanh(), backend="jaten")
    x, outer = torch.randn(8, 8), torch.randn(8, 8)
    for i in range(5):
        for one in (outer, outer.t(), torch._neg_view(outer)):
            (got,) = torch.autograd.grad(fn(x), w, one)
            (expected,) = torch.autograd.grad((x @ w).tanh(), w, one)
            torch.testing.assert_close(got, expected)
        x[i], outer[i] = i, 1


def test_an_input_is_not_kept_alive() -> None:
    fn = torch.compile(lambda x: x * 2, backend="jaten")
    x = torch.randn(256)
    for _ in range(4):
        fn(x)
    counts = [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in (x, torch.randn(256))]
    assert counts[0] == counts[1]


def test_threads_lend_their_own() -> None:
    fn = torch.compile(lambda x: x * 2 + 1, backend="jaten")
    fn(torch.zeros(64))
    wrong: list[int] = []

    def run(n: int) -> None:
        x = torch.full((64,), float(n))
        for i in range(200):
            x.fill_(n + i)
            if not torch.equal(fn(x), torch.full((64,), 2.0 * (n + i) + 1)):
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_static_inputs_of_several_modules() -> None:
    """Each tensor has its array as long as it lives where it is: a graph may serve several layers by turns."""
    static = lent_inputs.Static(None, jax.devices("cpu")[0])
    first, second = torch.ones(64), torch.zeros(64)
    static.keep(first)
    arrays = [static.keep(t) for t in (second, first, second, first)]
    assert arrays[0] is arrays[2] and arrays[1] is arrays[3] and arrays[0] is not arrays[1]
    assert [a.sum() for a in arrays] == [0, 64, 0, 64]
    assert static.held == (first.data_ptr(), arrays[1])

    second.data = torch.full((64,), 2.0)
    assert static.keep(second).sum() == 128

    gone = weakref.ref(arrays[1])
    del first, arrays
    static.keep(second)
    gc.collect()
    assert gone() is None
