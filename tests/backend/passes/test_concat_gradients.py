"""Gradients of parts of a tensor: side by side where there are several, and what they are in eager PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import expecttest
import pytest
import torch
from torch import Tensor

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.backend.graph_info import GraphInfo
from jaten_ops.backend.nodes import overload_of
from jaten_ops.backend.passes.concat_gradients import concat_gradients
from jaten_ops.ops.namespace import operator_of

from ...harness.passes import golden, watched


def _loop(x: Tensor) -> Tensor:
    state, found = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = (state * x[:, t]).tanh() + x[:, t]
        found.append(state)
    return torch.stack(found, 1)


def _some(x: Tensor) -> Tensor:
    """With gaps before, between and behind, by numbers from the end."""
    return x[:, 1].sin() + x[:, -2].cos() + x[:, 3].exp()


def _over_each_other(x: Tensor) -> Tensor:
    return x[:, 0:3].sin() + x[:, 1:4].cos() + x[:, 2:5].exp() + x[:, 1:4].tanh() + x[:, 1:2]


def _along_two(x: Tensor) -> Tensor:
    rows = sum(x[i].sin().sum() for i in range(3))
    columns = sum(x[:, j].cos().sum() for j in range(4))
    return rows + columns + (x * x).sum()


def _steps(x: Tensor) -> Tensor:
    """A part in steps has gaps of its own."""
    return x[:, ::2].sum() * x[:, 1].sum() + x[:, 2].sin().sum() + x[:, 5].cos().sum() + x[:, -1].exp().sum()


def _of_what_is_computed(x: Tensor) -> Tensor:
    y = x.exp()
    return y[:, 0] * y[:, 1] + y[:, 2] * y[:, 3] + y.sum(1)


def _two(x: Tensor) -> Tensor:
    return x[:, 0] * x[:, 1]


# what puts parts into zeros, and what joins, in the backward graph
CASES: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "a loop": (_loop, 0, 1),
    "some": (_some, 0, 1),
    "over each other": (_over_each_other, 0, 3),
    "along two": (_along_two, 0, 2),
    "steps": (_steps, 1, 1),
    "of what is computed": (_of_what_is_computed, 0, 1),
    "two": (_two, 2, 0),
}


@pytest.fixture
def graphs() -> Iterator[list[Counter[str | None]]]:
    """For each compiled graph, the number of nodes of each operator after the pass."""
    found: list[Counter[str | None]] = []

    def seen(gm: torch.fx.GraphModule) -> None:
        gm.graph.lint()
        found.append(Counter(overload_of(n.target) for n in gm.graph.nodes if n.op == "call_function"))

    with watched("concat_gradients", seen):
        yield found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("case", CASES)
def test_gradients(case: str, device: str, graphs: list[Counter[str | None]], fresh_dynamo: None) -> None:
    function, in_zeros, joined = CASES[case]
    x = torch.randn(3, 6, 4, dtype=torch.float64)
    eager = x.clone().requires_grad_()
    function(eager).square().sum().backward()
    mine = x.to(device).requires_grad_()
    torch.compile(lambda x: function(x).square().sum(), backend="jaten", fullgraph=True)(mine).backward()
    assert eager.grad is not None and mine.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), eager.grad)
    last = graphs[-1]
    assert (last["select_backward"] + last["slice_backward"], last["cat"]) == (in_zeros, joined)


def test_infinities_stay_where_they_are(fresh_dynamo: None) -> None:
    x = torch.tensor([[0.0, 1.0, 4.0, float("inf")]], requires_grad=True)

    def roots(x: Tensor) -> Tensor:
        return sum(x[:, i].sqrt() for i in range(4))  # type: ignore[return-value]  # of tensors

    (expected,) = torch.autograd.grad(roots(x).sum(), x)
    (found,) = torch.autograd.grad(torch.compile(roots, backend="jaten")(x).sum(), x)
    torch.testing.assert_close(found, expected)
    assert found[0, 0] == float("inf") and found[0, 3] == 0


def test_sizes_that_change(fresh_dynamo: None) -> None:
    compiled = torch.compile(lambda x: sum(x[:, i].sin().sum() for i in range(4)), backend="jaten", dynamic=True)
    for rows, columns in ((2, 6), (5, 7), (3, 4)):
        x = torch.randn(rows, columns, requires_grad=True)
        compiled(x).backward()
        assert x.grad is not None
        expected = x.detach().cos()
        expected[:, 4:] = 0
        torch.testing.assert_close(x.grad, expected)


def test_as_many_as_steps_of_time() -> None:
    """A sum of sums of sums is no deep recursion."""
    graph, steps = torch.fx.Graph(), 1200
    part, whole = torch.empty(2), torch.empty(2, steps)

    def call(overload: str, value: Tensor, *args: object) -> torch.fx.Node:
        node = graph.call_function(operator_of(overload), args)
        node.meta["val"] = value
        return node

    grad = graph.placeholder("grad")
    grad.meta["val"] = part
    total = call("select_backward", whole, grad, [2, steps], 1, 0)
    for step in range(1, steps):
        total = call("add.Tensor", whole, total, call("select_backward", whole, grad, [2, steps], 1, step))
    graph.output(total)
    gm = torch.fx.GraphModule({}, graph)
    concat_gradients(gm, GraphInfo())
    gm.graph.lint()
    gm.recompile()
    counts = Counter(overload_of(n.target) for n in gm.graph.nodes if n.op == "call_function")
    assert counts == {"unsqueeze": steps, "cat": 1}
    assert torch.equal(gm(torch.tensor([1.0, 2.0])), torch.tensor([[1.0], [2.0]]).expand(2, steps))


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_some(self) -> None:
        got = golden("concat_gradients", _some, torch.ones(1, 5, requires_grad=True))
        self.assertExpectedInline(
            got,
            """\
--- backward
joined_default: float32[3]
tangents_1: float32[1]
part_default: float32[1] = jaten_nn::part(joined_default, 0, [1])
part_default_1: float32[1] = jaten_nn::part(joined_default, 1, [1])
part_default_2: float32[1] = jaten_nn::part(joined_default, 2, [1])
mul: float32[1] = jaten::mul.Tensor(tangents_1, part_default)
select_backward: float32[1, 5] = jaten::select_backward(mul, [1, 5], 1, 3)
mul_1: float32[1] = jaten::mul.Tensor(tangents_1, part_default_1)
select_backward_1: float32[1, 5] = jaten::select_backward(mul_1, [1, 5], 1, -2)
add_2: float32[1, 5] = jaten::add.Tensor(select_backward, select_backward_1)
mul_2: float32[1] = jaten::mul.Tensor(tangents_1, part_default_2)
select_backward_2: float32[1, 5] = jaten::select_backward(mul_2, [1, 5], 1, 1)
add_3: float32[1, 5] = jaten::add.Tensor(add_2, select_backward_2)
return (add_3,)

=>

joined_default: float32[3]
tangents_1: float32[1]
part_default: float32[1] = jaten_nn::part(joined_default, 0, [1])
part_default_1: float32[1] = jaten_nn::part(joined_default, 1, [1])
part_default_2: float32[1] = jaten_nn::part(joined_default, 2, [1])
mul: float32[1] = jaten::mul.Tensor(tangents_1, part_default)
mul_1: float32[1] = jaten::mul.Tensor(tangents_1, part_default_1)
mul_2: float32[1] = jaten::mul.Tensor(tangents_1, part_default_2)
unsqueeze_default: float32[1, 1] = jaten::unsqueeze(mul, 1)
unsqueeze_default_1: float32[1, 1] = jaten::unsqueeze(mul_1, 1)
add_tensor: float32[1, 1] = jaten::add.Tensor(unsqueeze_default, unsqueeze_default_1)
unsqueeze_default_2: float32[1, 1] = jaten::unsqueeze(mul_2, 1)
new_zeros_default: float32[1, 1] = jaten::new_zeros(unsqueeze_default_2, [1, 1])
new_zeros_default_1: float32[1, 1] = jaten::new_zeros(unsqueeze_default_2, [1, 1])
new_zeros_default_2: float32[1, 1] = jaten::new_zeros(unsqueeze_default_2, [1, 1])
cat_default: float32[1, 5] = jaten::cat([new_zeros_default, unsqueeze_default_2, new_zeros_default_1, add_tensor, new_zeros_default_2], 1)
return (cat_default,)""",
        )
