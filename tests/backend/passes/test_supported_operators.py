"""Higher-order operators that cannot be run are refused, in graphs inside as well."""

from __future__ import annotations

import expecttest
import torch

from jaten_ops.backend.graph_info import GraphInfo
from jaten_ops.backend.passes.supported_operators import supported_operators
from jaten_ops.errors import UnsupportedInputError


def _graph() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    call = graph.call_function(torch.ops.higher_order.run_with_rng_state, (graph.placeholder("x"),))
    call.meta["stack_trace"] = 'File "program.py", line 3, in f\n    return roll(x)'
    graph.output((call,))
    return torch.fx.GraphModule({}, graph)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    def test_refused(self) -> None:
        self.assertExpectedRaisesInline(
            UnsupportedInputError,
            lambda: supported_operators(_graph(), GraphInfo()),
            """higher-order operator: got run_with_rng_state (program.py:3: return roll(x)), expected one of associative_scan, cond, flex_attention, flex_attention_backward, invoke_subgraph, map_impl, out_dtype, print, scan, while_loop, while_loop_stack_output, with_effects; keep it outside, with torch.compiler.disable.""",
        )
