"""Calls with effects are in graphs without the tokens that order them."""

from __future__ import annotations

import operator

import expecttest
import torch

from jaten_ops.backend.graph_info import GraphInfo
from jaten_ops.backend.graph_text import text_of
from jaten_ops.backend.passes.ordered_effects import ordered_effects


def _graph() -> torch.fx.GraphModule:
    """Two calls in turn, one with several results."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value = torch.ones(2, 2)
    token = graph.call_function(torch.ops.prims._make_token.default)
    effects = torch.ops.higher_order.with_effects
    first = graph.call_function(effects, (token, torch.ops.aten.sin.default, x))
    first.meta["val"] = (torch.empty(0), value)
    token, sine = (graph.call_function(operator.getitem, (first, n)) for n in range(2))
    second = graph.call_function(effects, (token, torch.ops.aten.max.dim, sine, 0))
    second.meta["val"] = (torch.empty(0), value[0], torch.ones(2, dtype=torch.int64))
    token, _, places = (graph.call_function(operator.getitem, (second, n)) for n in range(3))
    graph.call_function(torch.ops.prims._sink_tokens.default, ([token],))
    graph.output((sine, places))
    return torch.fx.GraphModule({}, graph)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_calls_in_turn(self) -> None:
        gm = _graph()
        before = text_of(gm)
        ordered_effects(gm, GraphInfo())
        gm.graph.lint()
        self.assertExpectedInline(
            f"{before}\n\n{text_of(gm)}",
            """\
x: float32[2, 2]
_make_token_default = prims::_make_token()
with_effects = with_effects(_make_token_default, aten::sin, x)
getitem = getitem(with_effects, 0)
getitem_1 = getitem(with_effects, 1)
with_effects_1 = with_effects(getitem, aten::max.dim, getitem_1, 0)
getitem_2 = getitem(with_effects_1, 0)
getitem_3 = getitem(with_effects_1, 1)
getitem_4 = getitem(with_effects_1, 2)
_sink_tokens_default = prims::_sink_tokens([getitem_2])
return (getitem_1, getitem_4)

x: float32[2, 2]
sin_default: float32[2, 2] = aten::sin(x)
max_dim = aten::max.dim(sin_default, 0)
getitem_5 = getitem(max_dim, 0)
getitem_6 = getitem(max_dim, 1)
return (sin_default, getitem_6)""",
        )
