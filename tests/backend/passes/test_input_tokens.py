"""Tokens that AOTAutograd leaves among the inputs of a graph are taken out, if nothing is done with them."""

from __future__ import annotations

import expecttest
import torch

from jaten_ops.backend.graph_info import GraphInfo
from jaten_ops.backend.graph_text import text_of
from jaten_ops.backend.passes.input_tokens import input_tokens


def _graph(used: bool) -> torch.fx.GraphModule:
    """A graph that takes and returns a token and a tensor."""
    graph = torch.fx.Graph()
    token, x = graph.placeholder("token"), graph.placeholder("x")
    graph.output((token if used else graph.call_function(torch.ops.prims._make_token.default), x))
    return torch.fx.GraphModule({}, graph)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    def test_tokens(self) -> None:
        texts = []
        for count, used in ((1, False), (1, True), (2, False)):
            gm = _graph(used)
            input_tokens(gm, GraphInfo(inputs=[None] * count))
            gm.graph.lint()
            texts.append(text_of(gm))
        self.assertExpectedInline(
            "\n\n".join(texts),
            """\
x
return (x,)

token
x
return (token, x)

token
x
_make_token_default = prims::_make_token()
return (_make_token_default, x)""",
        )
