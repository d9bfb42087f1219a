"""Expanded indices: rows by their numbers, and what only looks like it."""

from __future__ import annotations

from typing import Any

import expecttest
import pytest
import torch
import torch._dynamo

from ...harness.passes import golden, watched

INDEX = torch.tensor([2, 0, 2, 1, 0])
BATCHES = torch.tensor([[4, 4], [0, 1], [3, 0]])
ZEROS, SOURCE = torch.zeros(3, 4), torch.randn(5, 4)

# the call, its operand, and whether it goes by rows in the forward graph
CALLS: dict[str, tuple[Any, torch.Tensor, bool]] = {
    "rows": (lambda s: ZEROS.scatter_add(0, INDEX[:, None].expand(-1, 4), s), SOURCE, True),
    "rows from the end": (lambda s: ZEROS.scatter_add(-2, INDEX[:, None].expand(5, 4), s), SOURCE, True),
    "columns": (lambda s: ZEROS.T.scatter_add(1, INDEX[None].expand(4, -1), s.T), SOURCE, True),
    "three dimensions": (
        lambda s: torch.zeros(2, 3, 4).scatter_add(1, INDEX[None, :, None].expand(2, 5, 4), s.expand(2, 5, 4)),
        SOURCE,
        True,
    ),
    "a part of the rows": (lambda s: ZEROS.scatter_add(0, INDEX[:, None].expand(-1, 2), s[:, :2]), SOURCE, False),
    "repeated along the rows": (lambda s: ZEROS.scatter_add(0, INDEX[None, :4].expand(5, 4) % 3, s), SOURCE, False),
    "the wrong dimension": (lambda s: (s * 0).scatter_add(1, INDEX[:, None].expand(-1, 4), s), SOURCE, False),
    **{
        f"{kind}, {'with' if own else 'without'} what is there": (
            lambda s, kind=kind, own=own: (ZEROS + 1.5).scatter_reduce(
                0, INDEX[:, None].expand(-1, 4), s, kind, include_self=own
            ),
            SOURCE,
            True,
        )
        for kind in ("prod", "mean", "amax", "amin", "sum")
        for own in (True, False)
        if own or kind != "sum"  # by rows in the backward graph alone
    },
    "gather of each batch": (lambda s: s.expand(3, 5, 4).gather(1, BATCHES[..., None].expand(-1, -1, 4)), SOURCE, False),
    "gather of batches from the end": (
        lambda s: torch.stack((s, 2 * s))[None].gather(-2, BATCHES[None, :2, :, None].expand(1, 2, 2, 4)),
        SOURCE,
        False,
    ),
    "gather of fewer batches": (
        lambda s: torch.stack((s, s, s)).gather(1, BATCHES[:2, :, None].expand(-1, -1, 4)),
        SOURCE,
        False,
    ),
    "gather": (lambda s: s.gather(0, INDEX[:, None].expand(-1, 4)), SOURCE, False),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients(name: str) -> None:
    fn, operand, is_by_rows = CALLS[name]
    seen: list[list[str]] = []
    x, y = operand.clone().requires_grad_(), operand.clone().requires_grad_()
    with watched("expanded_index_scatters", lambda gm: seen.append([str(n.target) for n in gm.graph.nodes])):
        got, expected = torch.compile(fn, backend="jaten")(x), fn(y)
        torch.testing.assert_close(got, expected)
        weights = torch.randn_like(expected)
        (got * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    forward, backward = seen
    assert any("index_add" in target or "index_reduce" in target for target in forward) == is_by_rows
    assert any("index_select" in target for target in backward) == is_by_rows


def _messages(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """The sum of the rows of each node's neighbours, as layers of graph networks compute it."""
    found = x.index_select(0, edges[0])
    return x.new_zeros(x.shape).scatter_add_(0, edges[1].view(-1, 1).expand_as(found), found)


def _largest(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    found = x.index_select(0, edges[0])
    index = edges[1].view(-1, 1).expand_as(found)
    return x.new_zeros(x.shape).scatter_reduce_(0, index, found, "amax", include_self=False)


def _calls(gm: torch.fx.GraphModule) -> set[str]:
    return {str(n.target) for n in gm.graph.nodes if n.op == "call_function"}


@pytest.mark.parametrize("fn", [_messages, _largest])
@pytest.mark.parametrize("how", ["dynamic", "automatic", "sizes that are counted"])
def test_sizes_may_be_open(fn: Any, how: str) -> None:
    seen: list[set[str]] = []
    counted = how == "sizes that are counted"
    whole = (lambda x, edges: fn(x, edges[:, edges[0] != edges[1]])) if counted else fn
    compiled = torch.compile(whole, backend="jaten", dynamic=True if how == "dynamic" else None)
    torch.manual_seed(0)
    with (
        watched("expanded_index_scatters", lambda gm: seen.append(_calls(gm))),
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=counted),
    ):
        for nodes, edges in ((7, 20), (9, 31), (12, 17), (11, 25)):
            x, y = (torch.randn(nodes, 5).requires_grad_() for _ in range(2))
            y.data.copy_(x.data)
            index = torch.randint(nodes, (2, edges))
            got, expected = compiled(x, index), whole(y, index)
            torch.testing.assert_close(got, expected)
            (got * got).sum().backward()
            (expected * expected).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
    assert seen
    assert not any("scatter" in target for names in seen for target in names)


def test_a_part_of_the_source() -> None:
    def fn(s: torch.Tensor) -> torch.Tensor:
        return ZEROS.scatter_add(0, INDEX[:3, None].expand(-1, 4), s)

    torch.testing.assert_close(torch.compile(fn, backend="jaten")(SOURCE), fn(SOURCE))


def test_errors_stay() -> None:
    index = torch.tensor([3])[:, None].expand(-1, 4)
    for fn in (lambda i: ZEROS.scatter_add(0, i.expand(-1, 4), SOURCE[:1]), lambda i: ZEROS.gather(0, i.expand(-1, 4))):
        with pytest.raises(RuntimeError, match="out of bounds"):
            torch.compile(fn, backend="jaten")(index[:, :1])


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_rows(self) -> None:
        got = golden("expanded_index_scatters", CALLS["rows"][0], SOURCE)
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[3, 4]
arg1_1: int64[5]
arg2_1: float32[5, 4]
unsqueeze: int64[5, 1] = jaten::unsqueeze(arg1_1, 1)
expand: int64[5, 4] = jaten::expand(unsqueeze, [-1, 4])
scatter_add: float32[3, 4] = jaten::scatter_add(arg0_1, 0, expand, arg2_1)
return (scatter_add,)

=>

arg0_1: float32[3, 4]
arg1_1: int64[5]
arg2_1: float32[5, 4]
unsqueeze: int64[5, 1] = jaten::unsqueeze(arg1_1, 1)
expand: int64[5, 4] = jaten::expand(unsqueeze, [-1, 4])
view_default: int64[5] = jaten::view(unsqueeze, [-1])
index_add_default: float32[3, 4] = jaten::index_add(arg0_1, 0, view_default, arg2_1)
return (index_add_default,)""",
        )


class _Gathered(torch.autograd.Function):
    """A gradient that nothing has checked the index of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.zeros(3, 5, 4).scatter_add(1, index[..., None].expand(-1, -1, 4), grad[:, :2]), None


def test_batches_go_by_rows_in_a_backward_graph() -> None:
    seen: list[list[str]] = []
    x = torch.randn(3, 5, 4, requires_grad=True)
    with watched("expanded_index_scatters", lambda gm: seen.append([str(n.target) for n in gm.graph.nodes])):
        torch.compile(_Gathered.apply, backend="jaten")(x, BATCHES).sum().backward()
    assert x.grad is not None and x.grad[0, 4, 0] == 2
    assert any("index_add" in target for target in seen[-1])


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_row_of_another_batch_is_an_error(wrong: int) -> None:
    x = torch.randn(3, 5, 4, requires_grad=True)
    index = BATCHES.clone()
    index[1, 1] = wrong
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        torch.compile(_Gathered.apply, backend="jaten")(x, index).sum().backward()
