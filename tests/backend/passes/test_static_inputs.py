"""Parameters and buffers are known among the inputs of forward and backward graphs."""

from __future__ import annotations

import expecttest
import torch

from ...harness.passes import golden


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_linear(self) -> None:
        got = golden("static_inputs", torch.nn.Linear(3, 2), torch.ones(2, 3, requires_grad=True))
        self.assertExpectedInline(
            got,
            """\
--- forward
primals_1: float32[2, 3]
primals_2: float32[2]
primals_3: float32[2, 3]
t: float32[3, 2] = aten::t(primals_1)
addmm: float32[2, 2] = aten::addmm(primals_2, primals_3, t)
return (addmm, primals_1, primals_3)

static_inputs = [0, 1]

--- backward
primals_1: float32[2, 3]
primals_3: float32[2, 3]
tangents_1: float32[2, 2]
t: float32[3, 2] = aten::t(primals_1)
t_1: float32[2, 3] = aten::t(t)
mm: float32[2, 3] = aten::mm(tangents_1, t_1)
t_2: float32[2, 2] = aten::t(tangents_1)
mm_1: float32[2, 3] = aten::mm(t_2, primals_3)
t_3: float32[3, 2] = aten::t(mm_1)
sum_1: float32[1, 2] = aten::sum.dim_IntList(tangents_1, [0], True)
view: float32[2] = aten::view(sum_1, [2])
t_4: float32[2, 3] = aten::t(t_3)
return (t_4, view, mm)

static_inputs = [0]""",
        )
