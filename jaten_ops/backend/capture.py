"""From Dynamo's graph to graphs of `jaten::` ops: AOTAutograd, the partitioner, and the renaming of ATen's ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.utils.checkpoint import CheckpointPolicy

from jaten_ops import registry

from .segments import make_executable
from .targets import overload_of, retarget


@functools.cache
def _decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """torch's own decompositions of the ops that have no kernel here."""
    table = core_aten_decompositions()
    return {op: fn for op, fn in table.items() if overload_of(op) not in registry.KERNELS}


def _partition(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> tuple[torch.fx.GraphModule, ...]:
    """The min-cut partitioner, told that a random op drawn again in the backward would draw something else."""
    for node in joint.graph.nodes:
        spec = registry.SPECS.get(overload_of(node.target) or "")
        if spec is not None and spec.random:
            node.meta.pop("recompute", None)  # activation checkpointing asks to
            for result in [node] if len(spec.returns) == 1 else node.users:  # of several, each is saved by itself
                result.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    # The partitioner's merging of equal nodes knows ATen's random ops by a list, and no others; XLA merges them anyway.
    with functorch_config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def _static_inputs(graph: torch.fx.Graph, *, backward: bool) -> frozenset[int]:
    """Which inputs are parameters and buffers, which keep their memory from call to call.

    The backward graph names what it got from the forward as the forward does, so they are found there by name.
    """
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    static = context.fw_metadata.static_input_indices
    if not backward:
        return frozenset(static)
    names = {f"primals_{i + 1}" for i in static}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    return frozenset(i for i, node in enumerate(placeholders) if node.target in names)


def _seen_outputs(*, backward: bool) -> int | None:
    """How many of a graph's outputs the user may see; None for all. The others are saved for the backward."""
    context = TracingContext.try_get()
    if backward or context is None or context.fw_metadata is None:
        return None
    return context.fw_metadata.num_forward_returns


def _compile(gm: torch.fx.GraphModule, _inputs: Sequence[Any], *, backward: bool = False) -> Callable[..., Any]:
    retarget(gm)
    executable = make_executable(gm, _static_inputs(gm.graph, backward=backward), _seen_outputs(backward=backward))

    def run(args: list[Any]) -> list[Any]:  # a function, since Dynamo's wrappers copy the mark below from no object
        return executable(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd is told to hand over one list
    return run


def jaten(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The `torch.compile` backend.

    Forward, backward and inference graphs each become one XLA executable, compiled at their first call, and again for
    each new combination of sizes if the graph is dynamic.

    Raises:
        MissingKernelError: the graph has an op without kernel.
    """
    compiler = aot_autograd(
        fw_compiler=_compile,
        bw_compiler=functools.partial(_compile, backward=True),
        inference_compiler=_compile,
        partition_fn=_partition,
        decompositions=_decompositions(),
    )
    # the tokens that order effectful ops stay inside the graph: in an executable the order is that of the data
    with functorch_config.patch(unlift_effect_tokens=True):
        return compiler(gm, example_inputs, **options)
