"""Values that the backward pass of `torch.scan` computes again, instead of keeping them for each step of the loop."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._higher_order_ops.partitioner as partitioner
from torch.fx import GraphModule, Interpreter, Node
from torch.utils.checkpoint import CheckpointPolicy

from .ledger import Patch

_CONSTRAIN = "jaten_distributed::constrain"


def honours_checkpoints(create: Callable[..., Any]) -> Callable[..., Any]:
    """`HopGraphMinCutPartitioner.create_partitioned_graph`, for functions with `torch.utils.checkpoint` in them.

    torch takes what a checkpoint computes again for what the forward pass has computed already, and keeps that. Here
    nothing is kept of a function with a checkpoint but its operands, and what is random. Nor is a parameter kept that a
    function gathers: for all steps together these would be the whole model.
    """

    @functools.wraps(create)
    def create_partitioned_graph(fw_fn: Any, fw_args: Sequence[Any], **options: Any) -> Any:
        again = _is_checkpointed(fw_fn)
        fn = _WithoutCheckpoints(fw_fn).run if again else fw_fn
        joint = partitioner.create_hop_joint_graph(fn, tuple(fw_args), functionalize=True)
        _mark(joint, again)
        partition = torch._functorch.partitioners.min_cut_rematerialization_partition
        return joint.partition(partition, options.get("always_recompute_complex_exprs", False))

    return create_partitioned_graph


def _is_checkpoint(target: Any) -> bool:
    return target is torch.ops.higher_order.tag_activation_checkpoint


def _is_checkpointed(fn: Any) -> bool:
    return isinstance(fn, GraphModule) and any(_is_checkpoint(node.target) for node in fn.graph.nodes)


class _WithoutCheckpoints(Interpreter):
    """Runs a graph, with the functions of its checkpoints in place."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_checkpoint(target):
            return args[0](*args[1:])
        return super().call_function(target, args, kwargs)


def _mark(joint: Any, all_of_it: bool) -> None:
    """Marks the nodes of the forward pass that the partitioner must recompute, or keep."""
    operands = joint.joint_gm.graph.find_nodes(op="placeholder")
    of_backward, gathered = set(operands[joint.n_primals :]), set()
    for node in joint.joint_gm.graph.nodes:
        inputs = node.all_input_nodes
        if not of_backward.isdisjoint(inputs):
            of_backward.add(node)
            continue
        if len(inputs) == 1 and (inputs[0] in gathered or (_is_placed(node) and inputs[0].op == "placeholder")):
            gathered.add(node)  # and what is made of it alone, as its transpose is
        if node.op == "call_function" and (all_of_it or node in gathered):
            policy = CheckpointPolicy.MUST_SAVE if _is_random(node) else CheckpointPolicy.MUST_RECOMPUTE
            node.meta["recompute"] = policy


def _is_placed(node: Node) -> bool:
    return getattr(node.target, "name", str)() == _CONSTRAIN


def _is_random(node: Node) -> bool:
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and _is_random(node.args[0])
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


ROW = Patch(
    "torch._higher_order_ops.partitioner:HopGraphMinCutPartitioner.create_partitioned_graph",
    honours_checkpoints,
    "the gradient of `torch.scan` would keep what a checkpoint in it, and fully_shard, are to compute again",
    "test_layer_scan",
    takes="fw_fn fw_args always_recompute_complex_exprs",
    for_device=False,
    loss="loops keep for each step what their gradients need: scan_layers(remat=True) saves no memory",
)
