"""A graph as plain data, for storing and comparing: its nodes, and the shapes and dtypes of inputs and outputs.

Only for a graph whose sizes are all known and whose operators are jaten's own: then this plan describes it fully.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from jaten_ops import registry
from jaten_ops.arrays import bridge
from jaten_ops.ops.namespace import operator_of
from jaten_ops.xla import disk_store

from .nodes import BACKWARD_MODULES, FORWARD_MODULES, frame_of, module_path, overload_of, part_of
from .passes.partial_writes import WRITING


class Unkept(Exception):
    """The graph cannot be serialized."""


@dataclass(frozen=True)
class Ref:
    """The node at an index."""

    place: int


@dataclass(frozen=True)
class TensorMetadata:
    """The shape, strides, dtype and device of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class SerializedNode:
    """A node: FX's op and target, and its arguments.

    Attributes:
        target: the overload of an operator, the name of a function of `operator`, that of an input, or a constant.
        value: what an input or output is.
        frame: file, line and text of the user's program that it comes from.
        modules: the key of its modules in `node.meta`, and the path of the innermost.
    """

    op: str
    target: Any
    args: Any
    kwargs: Any
    value: Any
    frame: tuple[str, str, str] | None
    modules: tuple[str, str]


@dataclass(frozen=True)
class Plan:
    nodes: tuple[SerializedNode, ...]

    def identity(self) -> str:
        """A key of the graph's computation, without its place in the user's program."""
        parts: list[str | bytes] = []
        for node in self.nodes:
            target = node.target
            if isinstance(target, torch.Tensor):
                array = np.array(bridge.borrow(target))
                parts += [f"{array.dtype} {array.shape}", array.tobytes()]
                target = None
            parts.append(repr((node.op, target, node.args, node.kwargs, node.value)))
        return disk_store.key_of(*parts)

    def frames(self) -> str:
        """A key of its place in the user's program."""
        return disk_store.key_of(repr([(node.frame, node.modules) for node in self.nodes]))


_OF_SAVED_TENSORS = ("jaten_nn::joined", "jaten_nn::part")
_PLAIN = {type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format}


def plan_of(gm: torch.fx.GraphModule) -> Plan | None:
    """The plan of a retargeted graph; None if it has none."""
    places = {node: Ref(place) for place, node in enumerate(gm.graph.nodes)}
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    ends = {*output.all_input_nodes, *(n for n in gm.graph.nodes if n.op == "placeholder")}
    ends.update(n for node in gm.graph.nodes if overload_of(node.target) in WRITING for n in node.all_input_nodes)
    try:
        for node in places:
            _described(node.meta.get("val"))  # of each node: an intermediate size may be unknown
        return Plan(tuple(_serialized(gm, node, places, node in ends) for node in places))
    except Unkept:
        return None


def _serialized(
    gm: torch.fx.GraphModule, node: torch.fx.Node, places: dict[torch.fx.Node, Ref], at_an_end: bool
) -> SerializedNode:
    def plain(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return places[value]
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, tuple):
            return tuple(plain(v) for v in value)
        if isinstance(value, dict):
            return {plain(k): plain(v) for k, v in value.items()}
        if type(value) is slice:
            return slice(plain(value.start), plain(value.stop), plain(value.step))
        if type(value) not in _PLAIN:
            raise Unkept
        return value

    if part_of(node):
        raise Unkept
    value = _described(node.meta.get("val")) if at_an_end else None
    modules = FORWARD_MODULES if node.meta.get(FORWARD_MODULES) else BACKWARD_MODULES, module_path(node)
    arguments = plain(node.args), plain(node.kwargs)
    return SerializedNode(node.op, _target(gm, node), *arguments, value, frame_of(node), modules)


def _target(gm: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    target: Any = node.target
    if node.op in ("placeholder", "output"):
        return str(target)
    if node.op == "get_attr":
        for name in str(target).split("."):
            gm = getattr(gm, name)
        if type(gm) is torch.Tensor and gm.device.type == "cpu":
            with unset_fake_temporarily():  # a graph is compiled while the fake tensors of its capture exist
                return gm.detach().clone()
    elif node.op == "call_function":
        overload = overload_of(target)
        if (overload in registry.KERNELS and target.namespace == "jaten") or overload in _OF_SAVED_TENSORS:
            return overload
        name = target.__name__ if isinstance(target, types.BuiltinFunctionType) else ""
        if getattr(operator, name, None) is target:
            return f"operator {name}"
    raise Unkept


def _described(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    if not isinstance(value, torch.Tensor):
        if type(value) not in _PLAIN:
            raise Unkept
        return value
    if value.layout is not torch.strided or value.is_quantized:
        raise Unkept
    numbers = [*value.shape, *value.stride()]
    if any(type(n) is not int for n in numbers):
        raise Unkept
    return TensorMetadata(tuple(value.shape), tuple(value.stride()), value.dtype, value.device)


def graph_of(plan: Plan) -> torch.fx.GraphModule:
    """A graph with this plan."""
    root = torch.nn.Module()
    graph = torch.fx.Graph()
    nodes: list[torch.fx.Node] = []
    with FakeTensorMode():
        for place, saved in enumerate(plan.nodes):
            target = saved.target
            if isinstance(target, torch.Tensor):
                target = f"constant_{place}"
                setattr(root, target, saved.target)
            elif saved.op == "call_function":
                target = _function(target)
            args, kwargs = _with_nodes(saved.args, nodes), _with_nodes(saved.kwargs, nodes)
            node = graph.create_node(saved.op, target, args, kwargs)
            node.meta["val"] = _fake(saved.value)
            if saved.frame is not None:
                file, line, text = saved.frame
                node.meta["stack_trace"] = f'File "{file}", line {line}, in graph\n{text}'
            key, path = saved.modules
            node.meta[key] = {"": (path, "")} if path else {}
            nodes.append(node)
    return torch.fx.GraphModule(root, graph)


def _function(target: str) -> Callable[..., Any]:
    if target.startswith("operator "):
        return getattr(operator, target.removeprefix("operator "))
    namespace, _, overload = target.rpartition("::")
    return operator_of(overload, namespace or "jaten")


def _with_nodes(value: Any, nodes: list[torch.fx.Node]) -> Any:
    if isinstance(value, Ref):
        return nodes[value.place]
    if isinstance(value, list | tuple):
        return type(value)(_with_nodes(v, nodes) for v in value)
    if isinstance(value, dict):
        return {k: _with_nodes(v, nodes) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(_with_nodes(v, nodes) for v in (value.start, value.stop, value.step)))
    return value


def _fake(value: Any) -> Any:
    """The `meta["val"]` of a node; to be called in a `FakeTensorMode`."""
    if isinstance(value, TensorMetadata):
        return torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device=value.device)
    return [_fake(v) for v in value] if isinstance(value, tuple) else value
