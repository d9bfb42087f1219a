"""Gradients over a mesh are placed within the backward graph; `tests/distributed/test_styles.py` looks at programs."""

from __future__ import annotations

import expecttest
import torch

from jaten_ops.backend.graph_info import GraphInfo
from jaten_ops.backend.graph_text import text_of
from jaten_ops.backend.passes.placed_gradients import placed_gradients


def _graph() -> torch.fx.GraphModule:
    """A graph of forward and backward of `x * w`, with the gradients of both."""
    graph = torch.fx.Graph()
    x, w, tangent = (graph.placeholder(name) for name in ("x", "w", "tangent"))
    results = [graph.call_function(torch.ops.aten.mul.Tensor, pair) for pair in ((x, w), (tangent, w), (tangent, x))]
    graph.output((results[0], *results[1:]))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, 2, device="meta")
    return torch.fx.GraphModule({}, graph)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    def test_placed(self) -> None:
        texts = []
        for layouts in ([None, "rows"], [None, None], ["merged"]):
            gm = _graph()
            placed_gradients(gm, GraphInfo("joint", gradient_layouts=layouts, forward_results=1))
            gm.graph.lint()
            texts.append(text_of(gm).partition("mul_tensor_2")[2])
        self.assertExpectedInline(
            "\n\n".join(texts),
            """\
: float32[4, 2] on meta = aten::mul.Tensor(tangent, x)
constrain_default: float32[4, 2] on meta = jaten_distributed::constrain(mul_tensor_2, rows)
return [mul_tensor, mul_tensor_1, constrain_default]

: float32[4, 2] on meta = aten::mul.Tensor(tangent, x)
return (mul_tensor, mul_tensor_1, mul_tensor_2)

: float32[4, 2] on meta = aten::mul.Tensor(tangent, x)
return (mul_tensor, mul_tensor_1, mul_tensor_2)""",
        )
