"""Conjugates of Python's numbers are numbers."""

from __future__ import annotations

import expecttest
import torch

from jaten_ops.backend.graph_info import GraphInfo
from jaten_ops.backend.graph_text import text_of
from jaten_ops.backend.passes.conjugate_numbers import conjugate_numbers


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_conjugate(self) -> None:
        graph = torch.fx.Graph()
        number = graph.call_function(torch.ops.aten._conj.default, (1 + 2j,))
        graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (graph.placeholder("x"), number)),))
        gm = torch.fx.GraphModule({}, graph)
        conjugate_numbers(gm, GraphInfo())
        gm.graph.lint()
        got = text_of(gm)
        self.assertExpectedInline(
            got,
            """\
x
mul_tensor = aten::mul.Tensor(x, (1-2j))
return (mul_tensor,)""",
        )
