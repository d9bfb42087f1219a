"""The operators in a graph: which jaten op each ATen call becomes, and which calls are plain Python."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from jaten_ops import registry
from jaten_ops.errors import MissingKernelError

_FRAME = re.compile(r'File "(.+?)", line (\d+), in .+\n(.+)')
_TORCH = os.path.dirname(torch.__file__)


def overload_of(target: Any) -> str | None:
    """The key in the registry's tables of an operator of ATen, jaten or a user; None for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    namespace, _, overload = target.name().partition("::")
    return overload if namespace in ("aten", "jaten") else f"{namespace}::{overload}"


def source_line(node: torch.fx.Node) -> str:
    """The line of the user's program that a node comes from, as " (file.py:12: y = f(x))"; empty if unknown.

    Of the frames that Dynamo kept, the innermost one outside torch; the innermost one if all are torch's.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    own = [f for f in frames if not f[0].startswith(_TORCH)]
    file, line, code = (own or frames)[-1]
    return f" ({file}:{line}: {code.strip()})"


def _returns_symints(target: torch._ops.OpOverload) -> bool:
    returns = target._schema.returns
    return bool(returns) and all(str(r.type) in ("int", "bool", "float", "number") for r in returns)


_TOKENS = (torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)


def is_token(target: Any) -> bool:
    """Whether a call makes or ends the tokens by which AOTAutograd orders effects."""
    return target in _TOKENS


def effectful(node: torch.fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """The operator that a node calls and its arguments: those of the op inside `with_effects(token, op, ...)`."""
    if node.target is torch.ops.higher_order.with_effects:
        return node.args[1], node.args[2:]
    return node.target, node.args


def retarget(gm: torch.fx.GraphModule) -> None:
    """Makes each ATen node the jaten op of the same overload. Sizes (`sym_size.int` and its kin) stay Python.

    Raises:
        MissingKernelError: an op without kernel, with the line of the user's program.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function" or is_token(node.target):
            continue
        target, _ = effectful(node)
        key = overload_of(target)
        if key is None or (_returns_symints(target) and target is node.target):
            continue
        if key not in registry.KERNELS:
            name = target.name().replace("aten::", "jaten::")
            raise MissingKernelError(name, source_line(node))
        if target is node.target and target.namespace == "aten":
            packet, _, suffix = key.partition(".")
            node.target = getattr(getattr(torch.ops.jaten, packet), suffix or "default")
    gm.recompile()
