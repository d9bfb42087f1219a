"""In-place views, such as `y.t_()`, of a tensor that shares its memory with others in the program: they become views.

AOTAutograd takes the others, that were made before, for views of what the tensor is afterwards: if that has the same
shape, their gradients go to other elements, with any backend.
"""

from __future__ import annotations

from typing import Any

import torch

from ..graph_info import GraphInfo
from ..nodes import captured_value, graphs_inside

_VIEWS = frozenset({"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"})


def out_of_place_views(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """Replaces them in Dynamo's graph, but those of inputs, which AOTAutograd gives new shapes after the call.

    Where nothing records gradients they stay: a view that is made there would have none.
    """
    for each in (gm, *graphs_inside(gm)):
        found = [node for node in _recorded(each.graph) if _has_others(node)]
        for node in found:
            _replace(each.graph, node)
        if found:
            each.recompile()
    return info


def _recorded(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The in-place views of a graph that are made where gradients are recorded."""
    records, found = [torch.is_grad_enabled()], []
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            records[-1] = bool(node.args[0])
        elif node.target is torch.autograd.grad_mode._enter_inference_mode:
            records.append(not node.args[0])
        elif node.target is torch.autograd.grad_mode._exit_inference_mode and len(records) > 1:
            records.pop()
        elif node.op == "call_method" and node.target in _VIEWS and records[-1]:
            found.append(node)
    return found


def _names_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that are the tensor to which an in-place view belongs: such an operation returns the tensor itself."""
    value = captured_value(node.args[0])
    return [n for n in node.graph.nodes if value is not None and captured_value(n) is value]


def _has_others(node: torch.fx.Node) -> bool:
    """True for an in-place view of a tensor of the program that shares its memory with one of another name."""
    own = _names_of(node)
    if any(n.op in ("placeholder", "get_attr") for n in own):
        return False
    root = _root(captured_value(node.args[0]))
    return any(n not in own and _root(captured_value(n)) is root for n in node.graph.nodes)


def _root(value: Any) -> Any:
    return value if not isinstance(value, torch.Tensor) or value._base is None else value._base


def _replace(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    own, places = _names_of(node), {n: i for i, n in enumerate(graph.nodes)}
    with graph.inserting_before(node):
        view = graph.call_method(str(node.target).removesuffix("_"), node.args, dict(node.kwargs))
    view.meta = dict(node.meta)
    for name in own:
        for user in [u for u in name.users if u is not view and places[u] > places[node]]:
            user.replace_input_with(name, view)
    node.replace_all_uses_with(view)
    graph.erase_node(node)
