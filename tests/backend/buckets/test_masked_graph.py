"""Graphs with open sizes on larger arrays, beside graphs of the exact sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import counters

F = torch.nn.functional


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "normal": lambda x: torch.randn_like(x) + torch.randn(x.shape[0] * 2, 2)[::2, :1],
    "uniform": lambda x: torch.rand_like(x, dtype=torch.float64) + torch.rand(x.shape[0], 1),
    "integers": lambda x: torch.randint_like(x, 0, 1000),
    "coins": lambda x: torch.bernoulli(x.sigmoid()) + torch.empty_like(x).exponential_(),
    "chosen": lambda x: torch.multinomial(x.softmax(1), 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_the_exact_size(name: str) -> None:
    operands = [torch.randn(count, 4) for count in (3, 7, 5, 12)]
    found = []
    for buckets in ([8, 16], "off"):
        torch._dynamo.reset()
        compiled = torch.compile(DRAWS[name], backend="jaten", dynamic=True, options={"buckets": buckets})
        before = counters["jaten"]["compiles"]
        for x in operands:
            torch._dynamo.mark_dynamic(x, 0)
            torch.manual_seed(0)
            found.append(compiled(x))
        assert counters["jaten"]["compiles"] - before == (2 if buckets != "off" else 4)
    for got, exact in zip(found[:4], found[4:], strict=True):
        assert torch.equal(got, exact)


def test_an_error_leaves_the_generator_as_without_buckets() -> None:
    states = []
    for buckets in ([8, 16], "off"):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, i: F.dropout(x)[i], backend="jaten", dynamic=True, options={"buckets": buckets}
        )
        for count in (3, 5):
            x, inside = torch.ones(count, 4), torch.tensor([0, count - 1])
            torch._dynamo.mark_dynamic(x, 0)
            compiled(x, inside)
            torch.manual_seed(0)
            with pytest.raises(IndexError, match=f"size {count}"):
                compiled(x, inside + 1)
            states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[2]) and torch.equal(states[1], states[3])


LOOPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "kthvalue": lambda x: x.kthvalue(2, 0)[0],
    "kthvalue, then a sum": lambda x: x.kthvalue(3, 0)[0] + x.sum(0),
    "a sum, then kthvalue": lambda x: x.sum(0) * x.kthvalue(1, 0)[0],
    "median": lambda x: x.median(0)[0] * x.median(0)[1],
    "loop": lambda x: torch.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y + x.mean(0)), (x.new_zeros(()), x[0].clone())
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_sizes_that_only_a_loop_reads(name: str) -> None:
    compiled = torch.compile(LOOPS[name], backend="jaten", dynamic=True)
    for count in (5, 6, 7, 9, 20):
        x = torch.randn(count, 4)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), LOOPS[name](x))
