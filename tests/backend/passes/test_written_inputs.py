"""The inputs of a program that are written to."""

from __future__ import annotations

import expecttest
import torch

from ...harness.passes import golden


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_written(self) -> None:
        got = golden("written_inputs", lambda x, y: x.add_(y), torch.ones(2), torch.ones(2))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[2]
arg1_1: float32[2]
add: float32[2] = aten::add.Tensor(arg0_1, arg1_1)
return (add, add)

written = [0]""",
        )
