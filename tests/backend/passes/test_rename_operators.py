"""Each ATen operator becomes the jaten operator of its name."""

from __future__ import annotations

import expecttest
import torch

from ...harness.passes import golden


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_renamed(self) -> None:
        got = golden("rename_operators", lambda x: x.sin().sum(0, keepdim=True) + x.shape[0], torch.ones(2, 3))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[2, 3]
sin: float32[2, 3] = aten::sin(arg0_1)
sum_1: float32[1, 3] = aten::sum.dim_IntList(sin, [0], True)
add: float32[1, 3] = aten::add.Tensor(sum_1, 2)
return (add,)

=>

arg0_1: float32[2, 3]
sin: float32[2, 3] = jaten::sin(arg0_1)
sum_1: float32[1, 3] = jaten::sum.dim_IntList(sin, [0], True)
add: float32[1, 3] = jaten::add.Tensor(sum_1, 2)
return (add,)""",
        )
