"""`torch.compile` without a backend: programs with tensors of the device `jax` go to jaten, all others to Inductor.

Inductor has no code for the device. The class that torch calls it by is private; where there is none, such programs
want `backend="jaten"`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_NAME = "_TorchCompileInductorWrapper"


def _is_on_jax(values: Iterable[Any]) -> bool:
    return any(isinstance(x, torch.Tensor) and x.device.type == "jax" for x in values)


def register() -> None:
    """Has Inductor's wrapper look at a program first."""
    wrapper = getattr(torch, _NAME, None)
    if wrapper is None:
        return
    inductor = wrapper.__call__

    @functools.wraps(inductor)
    def compile_fx(self: Any, gm: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        made = tree_leaves([node.meta.get("example_value") for node in gm.graph.nodes])
        if _is_on_jax(inputs) or _is_on_jax(made):
            return torch._dynamo.lookup_backend("jaten")(gm, inputs)
        return inductor(self, gm, inputs, **options)

    wrapper.__call__ = compile_fx
