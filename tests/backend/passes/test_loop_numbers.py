"""Numbers that come out of loops are tensors, read where they are used."""

from __future__ import annotations

import expecttest
import torch
from torch._higher_order_ops import while_loop

from ...harness.passes import golden


def _count(x: torch.Tensor) -> torch.Tensor:
    n, y = while_loop(lambda n, y: y.sum() < 100, lambda n, y: (n + 1, y * 2), (0, x))
    return y + n


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_a_loop_that_counts(self) -> None:
        got = golden("loop_numbers", _count, torch.ones(2))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[2]
while_loop_cond_graph_0 = while_loop_cond_graph_0
while_loop_body_graph_0 = while_loop_body_graph_0
while_loop = while_loop(while_loop_cond_graph_0, while_loop_body_graph_0, (0, arg0_1), ())
getitem: u2 = getitem(while_loop, 0)
getitem_1: float32[2] = getitem(while_loop, 1)
add: float32[2] = jaten::add.Tensor(getitem_1, getitem)
return (add,)

while_loop_body_graph_0:
arg0_1: u4
arg1_1: float32[2]
add: u4 + 1 = add(arg0_1, 1)
mul: float32[2] = jaten::mul.Tensor(arg1_1, 2)
return (add, mul)

while_loop_cond_graph_0:
arg0_1: u4
arg1_1: float32[2]
sum_1: float32[] = jaten::sum(arg1_1)
lt: bool[] = jaten::lt.Scalar(sum_1, 100)
return lt

=>

arg0_1: float32[2]
while_loop_cond_graph_0 = while_loop_cond_graph_0
while_loop_body_graph_0 = while_loop_body_graph_0
while_loop = while_loop(while_loop_cond_graph_0, while_loop_body_graph_0, (0, arg0_1), ())
getitem: int64[] = getitem(while_loop, 0)
_local_scalar_dense_default: u2 = aten::_local_scalar_dense(getitem)
getitem_1: float32[2] = getitem(while_loop, 1)
add: float32[2] = jaten::add.Tensor(getitem_1, _local_scalar_dense_default)
return (add,)

while_loop_body_graph_0:
arg0_1: u4
arg1_1: float32[2]
add: u4 + 1 = add(arg0_1, 1)
mul: float32[2] = jaten::mul.Tensor(arg1_1, 2)
return (add, mul)

while_loop_cond_graph_0:
arg0_1: u4
arg1_1: float32[2]
sum_1: float32[] = jaten::sum(arg1_1)
lt: bool[] = jaten::lt.Scalar(sum_1, 100)
return lt""",
        )
