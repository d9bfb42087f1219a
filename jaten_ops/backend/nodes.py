"""Nodes of a graph: which operator one calls, what it stands for, where in the user's program it comes from."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from jaten_ops.hooks.dtensor_draws import PART
from jaten_ops.registry import external_ops

_FRAME = re.compile(r'File "(.+?)", line (\d+), in .+\n(.+)')
_TORCH = os.path.dirname(torch.__file__)
_ROOT = re.compile(r"[LG]\['(\w+)'\]")  # of the path of a module: a local or a global variable
_CHILD = re.compile(r"\._modules\['(\w+)'\]|\[(\d+)\]")
FORWARD_MODULES, BACKWARD_MODULES = "nn_module_stack", "fwd_nn_module_stack"
"""The keys of `node.meta` under which torch keeps the modules of a node; of a node of the backward pass, the second."""


def overload_of(target: Any) -> str | None:
    """The key in the registry's tables of an operator of ATen, jaten or a user; None for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    return external_ops.name_of(target)


def fake_value(node: Any) -> Any:
    """The value of a node in the capture: a fake tensor, a size, or several; None for anything else."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def captured_value(node: Any) -> Any:
    """The value of a node of Dynamo's graph, as `fake_value` of AOTAutograd's; None for anything else."""
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def whole_description(description: Any) -> Any:
    """AOTAutograd's description of the tensor of which a value is a part, as the carrier of one of the device is."""
    while hasattr(description, "base"):
        description = description.base
    return description


def outputs_of(graph: torch.fx.Graph) -> list[Any]:
    """The outputs of a graph of AOTAutograd's: nodes, and what is known before it runs."""
    return list(graph.output_node().args[0])  # type: ignore[arg-type]  # there it is a list or a tuple


def is_jax_node(node: Any) -> bool:
    """True for a node whose value is a tensor of the device."""
    value = fake_value(node)
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


def inputs_written_to(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The inputs of a joint graph, or of its forward part, that the program writes to."""
    given = [whole_description(d) for d in graph.output_node().meta.get("desc") or []]
    written = {getattr(d, "mutated_input", None) for d in given} - {None}
    copied = {n.args[0] for n in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    placeholders = graph.find_nodes(op="placeholder")
    return copied | {n for n in placeholders if whole_description(n.meta.get("desc")) in written}  # type: ignore[return-value]  # what is copied to is a node


def is_higher_order(node: torch.fx.Node) -> bool:
    """True if a node calls an operator that takes graphs."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def is_of_meta(value: Any) -> bool:
    """True for a tensor of the device `meta`."""
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def is_without_values(node: torch.fx.Node) -> bool:
    """True if a node calls an operator that takes or gives tensors of the device `meta`: ATen runs it."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(map(is_of_meta, tree_leaves([fake_value(n) for n in (node, *node.all_input_nodes)])))


def attribute_of(gm: torch.nn.Module, node: torch.fx.Node) -> Any:
    """The value of a `get_attr` node: a tensor, or a graph inside the graph."""
    value: Any = gm
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def graphs_inside(gm: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The graphs that are operands in a graph, and in these: each once, the innermost first."""
    found: dict[torch.fx.GraphModule, None] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        value = attribute_of(gm, node)
        if isinstance(value, torch.fx.GraphModule) and value not in found:
            found.update(dict.fromkeys([*graphs_inside(value), value]))
    return list(found)


def part_of(node: torch.fx.Node) -> int:
    """The offset of the part of a DTensor on which a random node draws; 0 for the first one, and for whole tensors."""
    return int(node.meta.get("custom", {}).get(PART, 0))


def source_line(node: torch.fx.Node) -> str:
    """The line of the user's program that a node comes from, as " (file.py:12: y = f(x))"; empty if unknown."""
    frame = frame_of(node)
    return "" if frame is None else " ({}:{}: {})".format(*frame)


def frame_of(node: torch.fx.Node) -> tuple[str, str, str] | None:
    """The file, line and text of the user's program that a node comes from.

    Of the frames that Dynamo kept, the innermost one outside torch; the innermost one if all are torch's.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    own = [f for f in frames if not f[0].startswith(_TORCH)]
    file, line, code = (own or frames)[-1]
    return file, line, code.strip()


def module_path(node: torch.fx.Node) -> str:
    """The path of the innermost module that a node is of, as "layers.3.attn"; empty if it is of none.

    A node of the backward pass is of the module of its forward pass. A path begins at the module that was compiled, or
    in a compiled function with the name of the variable that holds the module.
    """
    modules = node.meta.get(FORWARD_MODULES) or node.meta.get(BACKWARD_MODULES) or {}
    paths = [path for path, _ in modules.values()]
    if not paths:
        return ""
    root = _ROOT.match(paths[0])
    # the module that was compiled is not among them; one of torch's own is, as the `fn` of a function of Dynamo's
    if root is not None and (paths[0] != root[0] or root[1] == "fn"):
        paths[-1] = paths[-1].removeprefix(root[0]).removeprefix(".")
    return _ROOT.sub(r"\1", _CHILD.sub(r".\1\2", paths[-1])).removeprefix(".")


def scope_of(node: torch.fx.Node) -> str:
    """The name of a node in XLA's program and in profiles, as "layers.3.attn/addmm" or "backward/layers.3.attn/mm"."""
    is_backward = node.meta.get(BACKWARD_MODULES) and not node.meta.get(FORWARD_MODULES)
    name = (overload_of(node.target) or str(node.target)).partition(".")[0].replace("::", ".")
    return "/".join(part for part in ("backward" if is_backward else "", module_path(node), name) if part)
