"""The ways to run a program: direct operators, the device, and compiled, on the CPU and on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import jaten_ops

from .programs import Program
from .surroundings import Surrounding
from .uses import SIZES, Run


@dataclass(frozen=True)
class Way:
    """A way to run a program.

    Attributes:
        device: where its inputs are.
        run: what runs the program under the surrounding's transform.
        needs: traits that a program must have.
        excludes: traits that it must not have.
        has_layouts: whether its results have the strides and offsets of eager ones.
    """

    name: str
    device: str
    run: Callable[[Program, Surrounding], Run]
    needs: frozenset[str] = frozenset()
    excludes: frozenset[str] = frozenset()
    has_layouts: bool = False

    def applies_to(self, program: Program) -> bool:
        return self.needs <= program.traits and not self.excludes & program.traits


def _eager(program: Program, surrounding: Surrounding) -> Run:
    return surrounding.transform(program.fn)


def compiled(backend: str) -> Callable[[Program, Surrounding], Run]:
    """The program under `torch.compile` with a backend, the transform inside."""

    def make(program: Program, surrounding: Surrounding) -> Run:
        torch._dynamo.reset()
        return torch.compile(surrounding.transform(program.fn), backend=backend)

    return make


def _direct(device: str) -> Callable[[Program, Surrounding], Run]:
    """The program's ATen operators, recorded for inputs of each size, as calls of jaten's."""

    def make(program: Program, surrounding: Surrounding) -> Run:
        graphs = {}
        for size in SIZES:
            examples = program.make_inputs(size=size)
            graph = make_fx(torch.func.functionalize(program.fn))(*examples)
            graphs[tuple([a.shape for a in examples])] = _renamed(graph, device)
        return surrounding.transform(lambda *args: graphs[tuple([a.shape for a in args])](*args))

    return make


def _renamed(graph: torch.fx.GraphModule, device: str) -> torch.fx.GraphModule:
    for node in graph.graph.nodes:
        target = node.target
        if node.op == "get_attr" and isinstance(constant := getattr(graph, str(target)), torch.Tensor):
            setattr(graph, str(target), constant.to(device))
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device(device)}
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
            packet = getattr(torch.ops.jaten, target._schema.name.removeprefix("aten::"))
            node.target = getattr(packet, _overload(target, node.args))
    graph.recompile()
    return graph


def _overload(target: torch._ops.OpOverload, args: tuple[Any, ...]) -> str:
    """The overload for the arguments: a recorded call may have a number for a tensor, which a direct call takes not."""
    schema = target._schema.arguments
    if len(args) > 1 and isinstance(schema[1].type, torch.TensorType) and not isinstance(args[1], torch.fx.Node):
        return "Scalar"
    return target._overloadname


_DIRECT = {"needs": frozenset({"smooth"}), "excludes": frozenset({"inner autograd", "operators", "higher order"})}

WAYS = {
    way.name: way
    for way in (
        Way("direct", "cpu", _direct("cpu"), **_DIRECT),
        Way("direct device", "jax", _direct("jax"), **_DIRECT),
        Way("operators", "cpu", _eager, needs=frozenset({"operators"})),
        Way("device", "jax", _eager),
        Way("compiled", "cpu", compiled("jaten"), has_layouts=True),
        Way("compiled device", "jax", compiled("jaten")),
    )
}
assert jaten_ops.Tensor  # the import makes the device
