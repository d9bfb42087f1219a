"""Numbers on which no shape depends are handed over: what a program computes with them is in test_dynamic_shapes."""

from __future__ import annotations

import expecttest
import torch

from ...harness.passes import golden, unnumbered


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_a_position(self) -> None:
        got = golden("traced_ints", lambda x, n: x.narrow(0, n, 2) * n, torch.ones(8), 3, dynamic=True)
        self.assertExpectedInline(
            unnumbered(got, "mul"),
            """\
--- inference
arg0_1: s77
arg1_1: float32[s77]
arg2_1: s86
add: s86 + 2 = add(arg2_1, 2)
slice_1: float32[2] = jaten::slice.Tensor(arg1_1, 0, arg2_1, add)
mul: float32[2] = jaten::mul.Tensor(slice_1, arg2_1)
return (mul,)

numbers = ['arg2_1']""",
        )
